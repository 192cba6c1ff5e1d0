package attach

import "testing"

// Two attachments never have the same files, whatever their container and link are called.
func TestIDs(t *testing.T) {
	names := []string{"web", "web.eth0", "web.eth0.5", "5", ".", "a%2Eb", "a.b", "a/b", ""}
	links := []string{"eth0", "eth0.5", "5", "0.5", ".", "a%2Eb", "a.b"}
	of := map[string]string{}
	for _, engine := range []string{"docker", "podman"} {
		for _, name := range names {
			for _, link := range links {
				id := idOf(Container{Engine: engine, Name: name}, link)
				this := engine + " " + name + " " + link
				if other, taken := of[id]; taken {
					t.Errorf("%q and %q are both %q", this, other, id)
				}
				of[id] = this
			}
		}
	}
}
