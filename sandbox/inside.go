package sandbox

// Init must be called first thing in main by programs that use Wrap or Join:
// where this process is the part that runs inside the namespace, Init does that
// part's work and never returns.
func Init() {}

// Inside is the container's side of Attach.
type Inside struct{}

// Open makes the network device in the namespace of the process and hands it to
// the host's side. Call it before the process changes its root, since it opens
// /dev/net/tun; from any thread, but in the namespace that Attach asked for. It
// removes the environment variable by which it found its socket. The error is
// ErrNotAttached where the process was not started by a command prepared by
// Attach.
func Open() (*Inside, error) { return nil, errNotYet }

// SetupNetwork gives the device its addresses and routes and waits until the
// host's side moves bytes. It needs /proc for what is optional only (ping as an
// ordinary user, no router advertisements).
func (i *Inside) SetupNetwork() error { return errNotYet }

// ResolvConf is a resolv.conf for the container's root that leads to the
// network's resolver; "" where DNS is off.
func (i *Inside) ResolvConf() string { return "" }

// Close ends the connection to the host's side; the network stays. Closing
// twice is harmless.
func (i *Inside) Close() error { return nil }
