package secure_test

import (
	"fmt"

	"cleat/tunnel/secure"
)

// Two hosts make a session and exchange one packet.
func Example() {
	near, _ := secure.ParsePrivateKey("wEa4yvXpYYSgkEYgUdaPqdzjO/tI4k1YtnPT8YDGH2c=")
	far, _ := secure.ParsePrivateKey("aA6/NSxkPJvYVCb9wyzTOiZGM5wyTEmI6GlpRHdGNlU=")
	if !secure.Initiates(near.Public(), far.Public()) {
		near, far = far, near
	}

	begun, message1, err := secure.NewHandshake(near, far.Public(), []byte("MTU 1400"))
	if err != nil {
		fmt.Println(err)
		return
	}
	message2, theirs, asked, err := secure.Respond(far, near.Public(), message1, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	ours, _, err := begun.Finish(message2)
	if err != nil {
		fmt.Println(err)
		return
	}

	window := secure.NewWindow()
	nonce := secure.Nonce{Space: 1, Counter: 0}
	sealed := ours.Seal(nil, []byte("header"), []byte("packet"), nonce)
	plain, err := theirs.Open(nil, []byte("header"), sealed, nonce)
	fmt.Printf("asked for %s\n", asked)
	fmt.Printf("got %s, error %v, new %v\n", plain, err, window.Mark(nonce.Counter))
	fmt.Printf("again: new %v\n", window.IsNew(nonce.Counter))
	// Output:
	// asked for MTU 1400
	// got packet, error <nil>, new true
	// again: new false
}
