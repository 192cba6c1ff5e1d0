package keep

import "testing"

func TestMayBeRelative(t *testing.T) {
	for arg, want := range map[string]bool{
		"attach": false, "web": false, "/run/netns/web": false, "4711": false,
		"192.0.2.10/24": false, "--ip=192.0.2.10/24,2001:db8::10/64": false, "198.51.100.0/24 via 192.0.2.1": false,
		"8080:80/tcp": false, "[::]:53:53/udp": false, "--publish=5000-5009:5000-5009/udp": false, "dir/udp": true,
		"netns/web": true, "./web": true, "../web": true, "path:web": true,
		"private_key=@key": true, "--set=private_key=@key": true, "192.0.2.10/24,dir/web": true,
		"containerd:k8s.io/web": true, // none, but it costs little
	} {
		if got := mayBeRelative(arg); got != want {
			t.Errorf("%q: %t", arg, got)
		}
	}
}

func TestIsPerProcess(t *testing.T) {
	for arg, want := range map[string]bool{
		"/proc/self/ns/net": true, "path:/proc/self/fd/3": true, "/proc/thread-self/ns/net": true,
		"private_key=@/dev/stdin": true, "--set=private_key=@/dev/fd/63": true,
		"web": false, "/proc/4711/ns/net": false, "/run/netns/self": false, "private_key=@/etc/key": false,
	} {
		if got := isPerProcess(arg); got != want {
			t.Errorf("%q: %t", arg, got)
		}
	}
}
