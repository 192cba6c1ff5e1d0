package cli

import "testing"

// TestSystemdSocket has the machine's systemd hold the socket of Docker's plug-in: the first request
// starts a keeper, and one that was killed or stopped delays a request by no more than its start.
func TestSystemdSocket(t *testing.T) {
	t.Parallel() // most of the time it waits
	needPrograms(t, "curl")
	told := bootSystemd(t, "socket.sh")
	const implements = `{"Implements":["NetworkDriver","IpamDriver"]}`
	tells(t, told, "before", "active, inactive")
	tells(t, told, "first request", implements)
	tells(t, told, "by its socket", "active")
	tells(t, told, "killed", implements, "another one runs")
	tells(t, told, "stopped", "the socket stays", implements)
	tells(t, told, "boot", implements)
}
