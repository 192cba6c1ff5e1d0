package find

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// scope selects whose engines are asked: root's and the caller's own or, for root, those
// of one other user.
type scope struct {
	m     *machine
	other int // uid; 0 selects root and the caller
}

func (s scope) has(uid int) bool {
	if s.other != 0 {
		return uid == s.other
	}
	return uid == 0 || uid == s.m.uid
}

func (s scope) users() []user {
	return slices.DeleteFunc(slices.Clone(s.m.users()), func(u user) bool { return !s.has(u.uid) })
}

func (s scope) runtimeDirs() []ownedDir {
	return slices.DeleteFunc(s.m.runtimeDirs(), func(d ownedDir) bool { return !s.has(d.owner) })
}

// engines returns all sources in the scope, or those of one engine.
func (s scope) engines(engine string, ms *monitors) []asking {
	all := slices.Concat(s.dockers(), s.podmans(ms))
	for _, dir := range s.containerdDirs() {
		all = append(all, asking{Containerd, dir})
	}
	all = append(all, asking{LXC, lxc{s, ms}}, asking{Apptainer, apptainer{s, ms}})
	return slices.DeleteFunc(all, func(a asking) bool { return engine != "" && a.engine != engine })
}

// others returns the users whose engines root asks about a name: those named in front of
// it or, for the empty name, which means everything, all who may have engines.
func (m *machine) others(name string, ms *monitors) []int {
	user, _, named := strings.Cut(name, "/")
	if m.uid != 0 || name != "" && !named {
		return nil
	}
	var uids []int
	for _, u := range m.users() {
		uids = append(uids, u.uid)
	}
	for _, dir := range m.runtimeDirs() {
		uids = append(uids, dir.owner)
	}
	ms.once.Do(ms.find)
	for _, x := range ms.all {
		uids = append(uids, x.uid)
	}
	slices.Sort(uids)
	return slices.DeleteFunc(slices.Compact(uids), func(uid int) bool {
		return uid == 0 || name != "" && m.userName(uid) != user
	})
}

// askedAtOnce limits how many users' engines this process asks at the same time. A user
// can block a caller for ever with a file system that does not respond. That holds a slot
// and a thread until the user lets go, so the limit is for the whole process.
var askedAtOnce = make(chan struct{}, 16)

// ofUser asks all engines of one user, one after the other.
type ofUser struct {
	name    string
	engines []asking
}

func (u ofUser) search(ctx context.Context, word string) ([]*candidate, error) {
	select {
	case askedAtOnce <- struct{}{}:
		defer func() { <-askedAtOnce }()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	var all []*candidate
	var errs []error
	absent := 0
	for _, a := range u.engines {
		found, err := a.search(ctx, strings.TrimPrefix(word, u.name+"/"))
		all = append(all, found...)
		switch {
		case errors.Is(err, errAbsent):
			absent++
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", a.engine, err))
		}
	}
	if absent == len(u.engines) {
		return all, errAbsent
	}
	return all, errors.Join(errs...)
}
