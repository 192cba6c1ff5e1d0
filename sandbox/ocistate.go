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

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// containerState is a runtime's message about a container (config-linux.md of the OCI runtime
// specification, "The Container Process State").
type containerState = specs.ContainerProcessState

const (
	maxState  = 1 << 20 // bytes of a runtime's message; annotations can be long
	maxConfig = 8 << 20 // bytes of a container's configuration
)

// readState reads a runtime's message and the descriptor of notifications that comes with it.
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
	state, index, err := parseState(io.MultiReader(bytes.NewReader(buf[:size]), c), len(fds))
	if err == nil {
		err = checkNotifications(fds[index])
	}
	if err != nil {
		return state, nil, err
	}
	fd := fds[index]
	closeAll(slices.Delete(fds, index, index+1))
	return state, os.NewFile(uintptr(fd), specs.SeccompFdName), nil
}

// parseState parses a message that came with a number of descriptors. index is that of the
// notifications among them.
func parseState(text io.Reader, fds int) (state containerState, index int, err error) {
	if err := json.NewDecoder(io.LimitReader(text, maxState)).Decode(&state); err != nil {
		return state, 0, err
	}
	if fds != len(state.Fds) {
		return state, 0, fmt.Errorf("got %d descriptors, %d were announced", fds, len(state.Fds))
	}
	if index = slices.Index(state.Fds, specs.SeccompFdName); index < 0 {
		return state, 0, errors.New("no descriptor of seccomp notifications")
	}
	if state.Pid <= 0 {
		return state, 0, fmt.Errorf("invalid process id %d", state.Pid)
	}
	return state, index, nil
}

// checkNotifications verifies that a descriptor is one of seccomp notifications.
func checkNotifications(fd int) error {
	const want = "anon_inode:seccomp notify" // init_listener (kernel/seccomp.c)
	if got, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd)); err != nil || got != want {
		return errors.Join(err, fmt.Errorf("the descriptor is %q, not one of seccomp notifications", got))
	}
	return nil
}

// configCaps are the capabilities that can change a network's interfaces, addresses and
// routes, or obtain others that can.
var configCaps = []string{"CAP_NET_ADMIN", "CAP_SYS_ADMIN"}

// hasConfigCaps reports whether a container's configuration gives one of its processes
// configCaps; processes that are executed in it later are not considered. It knows no names of
// capability sets, so that it misses none. The result is true if the text can't be parsed.
func hasConfigCaps(text []byte) bool {
	var config struct {
		Process struct {
			Capabilities map[string][]string `json:"capabilities"`
		} `json:"process"`
	}
	if json.Unmarshal(text, &config) != nil {
		return true
	}
	for _, set := range config.Process.Capabilities {
		if slices.ContainsFunc(set, func(c string) bool { return slices.Contains(configCaps, c) }) {
			return true
		}
	}
	return false
}

// readConfig reads the configuration in a bundle. It refuses files that users other than the
// caller and root can write.
func readConfig(bundle string) ([]byte, error) {
	if !filepath.IsAbs(bundle) {
		return nil, errors.New("the bundle's path is not absolute")
	}
	dir, err := unix.Open(bundle, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: bundle, Err: err}
	}
	defer unix.Close(dir)
	if err := checkOwner(dir, unix.S_IFDIR); err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, "config.json", unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(bundle, "config.json"), Err: err}
	}
	f := os.NewFile(uintptr(fd), "config.json")
	defer f.Close()
	if err := checkOwner(fd, unix.S_IFREG); err != nil {
		return nil, err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxConfig+1))
	if err == nil && len(text) > maxConfig {
		err = errors.New("the container's configuration is too long")
	}
	return text, err
}

// checkOwner refuses a file of another type, and one that users other than the caller and root
// can write.
func checkOwner(fd int, fileType uint32) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	trusted := st.Uid == 0 || st.Uid == uint32(os.Geteuid())
	if !trusted || st.Mode&0o022 != 0 || st.Mode&unix.S_IFMT != fileType {
		return errors.New("other users can write the container's configuration")
	}
	return nil
}
