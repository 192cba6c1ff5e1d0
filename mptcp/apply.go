package mptcp

import (
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// ErrChanged means that the network has changed since the plan was made.
var ErrChanged = errors.New("the network has changed since the plan was made: plan again")

// delWords turns the ip(8) words of a command that adds something into those that remove
// it.
func delWords(what string) string {
	head, rest, _ := strings.Cut(what, " add ")
	if !strings.HasSuffix(head, "endpoint") {
		return head + " del " + rest
	}
	_, id, _ := strings.Cut(rest, " id ")
	id, _, _ = strings.Cut(id, " ")
	return head + " delete id " + id
}

// Apply carries out the plan. If a step fails, the earlier steps are undone, and an error
// in that is joined to the first. If nothing needs to be done, Apply changes nothing.
func (p *Plan) Apply() (err error) {
	if len(p.steps) == 0 && p.same(p.before) {
		return nil
	}
	locked, err := openState(p.ns, filepath.Dir(p.file.path), true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locked.close()) }()
	locked.sweep(namespaces)
	now, err := locked.read()
	if err != nil {
		return err
	}
	if !reflect.DeepEqual(now, p.before) {
		return ErrChanged
	}
	if err := locked.write(p.during); err != nil {
		return err
	}
	for i, s := range p.steps {
		if err := s.do(); err != nil {
			err = fmt.Errorf("%s: %w", s.what, err)
			if back := p.rollBack(p.steps[:i]); back != nil {
				return errors.Join(err, back) // the file still lists what may be left
			}
			return errors.Join(err, locked.write(p.before))
		}
	}
	return locked.write(p.after)
}

// same reports whether the file already has its final content.
func (p *Plan) same(now *State) bool {
	if now == nil || p.after == nil {
		return now == p.after
	}
	after := *p.after
	after.Boot, after.Inode = now.Boot, now.Inode
	return reflect.DeepEqual(now, &after)
}

// rollBack undoes steps, last first. It continues after an error.
func (p *Plan) rollBack(done []step) error {
	var all []error
	for _, s := range slices.Backward(done) {
		if err := s.undo(); err != nil {
			all = append(all, fmt.Errorf("undo %q: %w", s.what, err))
		}
	}
	return errors.Join(all...)
}
