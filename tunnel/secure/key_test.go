package secure

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestKeyTexts(t *testing.T) {
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	other, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	if key.Text() == other.Text() {
		t.Error("two generated keys are the same")
	}
	again, err := ParsePrivateKey(key.Text())
	if err != nil || again.Text() != key.Text() || again.Public() != key.Public() {
		t.Errorf("private key from its text: %v", err)
	}
	public, err := ParsePublicKey(key.Public().String())
	if err != nil || public != key.Public() {
		t.Errorf("public key from its text: %v, %v", public, err)
	}
	if raw, _ := base64.StdEncoding.DecodeString(key.Text()); raw[0]&7 != 0 || raw[31]>>6 != 1 {
		t.Errorf("generated key %x has other bits than WireGuard's", raw)
	}
}

// TestPublicOfPrivate uses the keys of RFC 7748 section 6.1.
func TestPublicOfPrivate(t *testing.T) {
	for _, c := range []struct{ name, private, public string }{
		{"Alice", "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a", "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"},
		{"Bob", "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb", "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"},
	} {
		key, err := ParsePrivateKey(textOfHex(t, c.private))
		if err != nil || key.Public().String() != textOfHex(t, c.public) {
			t.Errorf("%s: public key %v, %v", c.name, key.Public(), err)
		}
	}
}

// textOfHex returns the text of a key given in hexadecimal.
func textOfHex(t *testing.T, text string) string {
	t.Helper()
	b, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b)
}

func TestParseRefuses(t *testing.T) {
	good, _ := keysFrom(t, 1)
	text := good.Public().String()
	little := func(first byte, rest byte, last byte) string {
		b := make([]byte, KeyBytes)
		b[0], b[31] = first, last
		for i := 1; i < 31; i++ {
			b[i] = rest
		}
		return base64.StdEncoding.EncodeToString(b)
	}
	for _, c := range []struct {
		name, text    string
		public        string // in the error; "": no error
		privateRefuse bool
	}{
		{"good", text, "", false},
		{"nothing", "", "0 characters", true},
		{"31 bytes", base64.StdEncoding.EncodeToString(make([]byte, 31)), "not base64 of 32 bytes", true},
		{"33 bytes", base64.StdEncoding.EncodeToString(make([]byte, 33)), "not base64 of 32 bytes", true},
		{"no padding", text[:43], "43 characters", true},
		{"trailing space", text + " ", "45 characters", true},
		{"line end inside", text[:20] + "\n" + text[21:], "not base64", true},
		{"URL alphabet", strings.Repeat("-", 43) + "=", "not base64", true},
		{"stray bits at the end", "AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAB=", "not base64", true},
		{"zero", little(0, 0, 0), "all zeros", true},
		{"one, of order 1 or 4", little(1, 0, 0), "low order", false},
		{"order 8", textOfHex(t, "e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800"), "low order", false},
		{"other point of order 8", textOfHex(t, "5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157"), "low order", false},
		{"2^255-20, of order 4", little(0xec, 0xff, 0x7f), "low order", false},
		{"2^255-19, which is 0", little(0xed, 0xff, 0x7f), "beyond", false},
		{"2^255-1, which is 18", little(0xff, 0xff, 0x7f), "beyond", false},
		{"bit 255", little(9, 0, 0x80), "beyond", false},
		{"below 2^255 by its middle", little(0xff, 0xfe, 0x7f), "", false},
		{"below 2^255 by its top", little(0xff, 0xff, 0x7e), "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			key, err := ParsePublicKey(c.text)
			if c.public == "" && (err != nil || key.String() != c.text) {
				t.Errorf("public key: %v, %v", key, err)
			}
			if c.public != "" && (!errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.public) || key != PublicKey{}) {
				t.Errorf("public key: %v, %v; want %q", key, err, c.public)
			}
			private, err := ParsePrivateKey(c.text)
			if c.privateRefuse != errors.Is(err, ErrKey) || c.privateRefuse != (private.Text() == "") {
				t.Errorf("private key: %v", err)
			}
			if err != nil && len(c.text) > 10 && strings.Contains(err.Error(), c.text[:10]) {
				t.Errorf("the error contains the key: %v", err)
			}
		})
	}
}

// TestPrivateKeyIsSilent prints a private key in every way that may happen by accident.
func TestPrivateKeyIsSilent(t *testing.T) {
	key, _ := keysFrom(t, 1)
	type config struct {
		Name string
		key  PrivateKey // fmt calls no methods of unexported fields
	}
	type loud struct{ Key PrivateKey }
	raw := *key.s.key
	forms := []string{
		key.Text(), hex.EncodeToString(raw[:]), fmt.Sprint(raw), fmt.Sprint(raw[:4]),
		fmt.Sprintf("%#v", raw), fmt.Sprintf("%X", raw), string(raw[:]), fmt.Sprintf("%q", raw[:]),
	}
	silent := func(how, printed string) {
		for _, form := range forms {
			if strings.Contains(printed, strings.Trim(form, "[]\"")) {
				t.Errorf("%s prints the key: %s", how, printed)
			}
		}
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t"} {
		if got := fmt.Sprintf(verb, key); got != "(private)" {
			t.Errorf("%s prints %q", verb, got)
		}
		silent("a field by "+verb, fmt.Sprintf(verb, loud{key}))
		silent("an unexported field by "+verb, fmt.Sprintf(verb, config{"n", key}))
		silent("a pointer by "+verb, fmt.Sprintf(verb, &config{"n", key}))
	}
	if key.String() != "(private)" {
		t.Errorf("String is %q", key.String())
	}
	marshalled, err := json.Marshal(loud{key})
	if err != nil {
		t.Fatal(err)
	}
	silent("JSON", string(marshalled))
}

func TestZeroPrivateKey(t *testing.T) {
	var none PrivateKey
	if none.Public() != (PublicKey{}) || none.Text() != "" {
		t.Errorf("the zero key has public %v", none.Public())
	}
	if _, _, _, err := Respond(none, PublicKey{1}, make([]byte, minMessage1), nil); !errors.Is(err, ErrKey) {
		t.Errorf("respond without a key: %v", err)
	}
}

func TestInitiates(t *testing.T) {
	for seed := range uint64(20) {
		random := bytesFrom(seed)
		a, b := keyOf(t, random).Public(), keyOf(t, random).Public()
		if Initiates(a, b) == Initiates(b, a) {
			t.Errorf("%v and %v: both or neither initiates", a, b)
		}
		if Initiates(a, a) {
			t.Errorf("%v initiates with itself", a)
		}
	}
}
