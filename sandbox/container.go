package sandbox

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// containerState is a runtime's message (config-linux.md of the OCI runtime
// specification, "The Container Process State").
type containerState struct {
	Fds   []string `json:"fds"`
	PID   int      `json:"pid"`
	State struct {
		PID    int    `json:"pid"` // of the container's first process
		Bundle string `json:"bundle"`
	} `json:"state"`
}

const (
	seccompFD = "seccompFd" // the name of the one descriptor that is for us
	maxState  = 1 << 20     // bytes; annotations can be long
	maxConfig = 8 << 20     // bytes of a container's configuration
)

// readState reads a runtime's message and the descriptor in it.
func readState(c *net.UnixConn) (state containerState, notifications *os.File, err error) {
	buf, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFiles))
	size, oobSize, _, _, err := c.ReadMsgUnix(buf, oob)
	if err != nil {
		return state, nil, err
	}
	fds, err := descriptors(oob[:oobSize])
	defer func() {
		if err != nil {
			closeAll(fds)
		}
	}()
	if err != nil {
		return state, nil, err
	}
	state, which, err := parseState(io.MultiReader(bytes.NewReader(buf[:size]), c), len(fds))
	if err == nil {
		err = checkNotifications(fds[which])
	}
	if err != nil {
		return state, nil, err
	}
	for i, fd := range fds {
		if i != which {
			unix.Close(fd)
		}
	}
	return state, os.NewFile(uintptr(fds[which]), seccompFD), nil
}

// parseState reads the text of a message that came with so many descriptors. which of
// them is the one of notifications.
func parseState(text io.Reader, fds int) (state containerState, which int, err error) {
	if err := json.NewDecoder(io.LimitReader(text, maxState)).Decode(&state); err != nil {
		return state, 0, err
	}
	if fds != len(state.Fds) {
		return state, 0, fmt.Errorf("%d descriptors came, %d were announced", fds, len(state.Fds))
	}
	if which = slices.Index(state.Fds, seccompFD); which < 0 {
		return state, 0, errors.New("no descriptor of notifications came")
	}
	if state.PID <= 0 {
		return state, 0, fmt.Errorf("it is about process %d", state.PID)
	}
	return state, which, nil
}

// checkNotifications refuses a descriptor that is of something else.
func checkNotifications(fd int) error {
	const want = "anon_inode:seccomp notify" // init_listener (kernel/seccomp.c)
	if is, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil || is != want {
		return errors.Join(err, fmt.Errorf("what came is no descriptor of notifications but %q", is))
	}
	return nil
}

// hostCaps are the capabilities that change a network's interfaces, addresses and
// routes, or get others that do.
var hostCaps = []string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}

// mayConfigure reports whether the configuration of a container lets any of its
// processes have hostCaps, but for those that are executed in it later. The process
// itself can't be asked: while its runtime prepares it, it has them all. It is true where
// the configuration can't be read, or be believed.
func mayConfigure(bundle string) bool {
	text, err := readConfig(bundle)
	if err != nil {
		return true
	}
	return hasHostCaps(text)
}

// hasHostCaps is mayConfigure for a configuration.
func hasHostCaps(text []byte) bool {
	var config struct {
		Process struct {
			Capabilities map[string][]string `json:"capabilities"`
		} `json:"process"`
	}
	if json.Unmarshal(text, &config) != nil {
		return true
	}
	for _, set := range config.Process.Capabilities {
		if slices.ContainsFunc(set, func(c string) bool { return slices.Contains(hostCaps, c) }) {
			return true
		}
	}
	return false
}

var errForeignBundle = errors.New("others could have written the container's configuration")

// readConfig reads the configuration of a bundle that nobody but the user and root could
// have written.
func readConfig(bundle string) ([]byte, error) {
	if !filepath.IsAbs(bundle) {
		return nil, errors.New("the bundle's path is not absolute")
	}
	dir, err := unix.Open(bundle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: bundle, Err: err}
	}
	defer unix.Close(dir)
	if err := checkOwned(dir, unix.S_IFDIR); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, "config.json", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(bundle, "config.json"), Err: err}
	}
	f := os.NewFile(uintptr(fd), "config.json")
	defer f.Close()
	if err := checkOwned(fd, unix.S_IFREG); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = errors.New("the container's configuration is too long")
	}
	return text, err
}

// checkOwned refuses a file that is not of a kind, or that others than the user and root
// may write.
func checkOwned(fd int, kind uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	own := st.Uid == 0 || st.Uid == uint32(os.Geteuid())
	if !own || st.Mode&0o022 != 0 || st.Mode&unix.S_IFMT != kind {
		return errForeignBundle
	}
	return nil
}
