package pasta

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// identity returns the user to change to, or nil. Root becomes nobody unless told
// otherwise, except root of a user namespace.
func identity(runas string) (*syscall.Credential, error) {
	if runas == "" {
		if os.Geteuid() != 0 || !initialUserNamespace() {
			return nil, nil
		}
		return lookUp("nobody", "")
	}
	user, group, _ := strings.Cut(runas, ":")
	c, err := lookUp(user, group)
	if err != nil {
		return nil, err
	}
	if int(c.Uid) == os.Geteuid() && int(c.Gid) == os.Getegid() {
		return nil, nil
	}
	if os.Geteuid() != 0 {
		return nil, fmt.Errorf("only root can run as uid %d, gid %d", c.Uid, c.Gid)
	}
	return c, nil
}

// lookUp resolves a user and a group, by number or name. Without a group it is the user's
// group or, for a number, the same number.
func lookUp(who, group string) (*syscall.Credential, error) {
	var c syscall.Credential
	if n, err := strconv.ParseUint(who, 0, 32); err == nil {
		c.Uid, c.Gid = uint32(n), uint32(n)
	} else {
		u, err := user.Lookup(who)
		if err != nil {
			return nil, err
		}
		if c.Uid, err = number(u.Uid); err != nil {
			return nil, err
		}
		if c.Gid, err = number(u.Gid); err != nil {
			return nil, err
		}
	}
	if group == "" {
		return &c, nil
	}
	if n, err := strconv.ParseUint(group, 0, 32); err == nil {
		c.Gid = uint32(n)
		return &c, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return nil, err
	}
	c.Gid, err = number(g.Gid)
	return &c, err
}

func number(id string) (uint32, error) {
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return 0, errors.New("id " + id + " is not a number")
	}
	return uint32(n), nil
}

// initialUserNamespace reports whether all ids are mapped to themselves, as in the
// initial user namespace.
func initialUserNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && strings.Join(strings.Fields(string(b)), " ") == "0 0 4294967295"
}
