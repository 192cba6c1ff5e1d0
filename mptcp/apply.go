package mptcp

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// ErrChanged says that something has changed since the plan was made.
var ErrChanged = errors.New("the network has changed since the plan was made: plan again")

// delWords makes of ip(8)'s words that add those that remove.
func delWords(what string) string {
	head, rest, _ := strings.Cut(what, " add ")
	if !strings.HasSuffix(head, "endpoint") {
		return head + " del " + rest
	}
	_, id, _ := strings.Cut(rest, " id ")
	id, _, _ = strings.Cut(id, " ")
	return head + " delete id " + id
}

// Apply carries the plan out. Where a step fails, those before it are taken back, and
// and an error in that is joined to the first. A plan that finds everything done
// touches nothing.
func (p *Plan) Apply() (err error) {
	if len(p.steps) == 0 && p.same(p.before) {
		return nil
	}
	locked, err := openState(p.ns, dirOf(p.file), true)
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
		if err := p.carryOut(i, s); err != nil {
			err = fmt.Errorf("%s: %w", s.what, err)
			if back := p.takeBack(p.steps[:i]); back != nil {
				return errors.Join(err, back) // the file still knows what may be there
			}
			return errors.Join(err, locked.write(p.before))
		}
	}
	return locked.write(p.after)
}

// same tells whether the file says already what it is to say in the end.
func (p *Plan) same(now *State) bool {
	if now == nil || p.after == nil {
		return now == p.after
	}
	after := *p.after
	after.Boot, after.Inode = now.Boot, now.Inode
	return reflect.DeepEqual(now, &after)
}

func (p *Plan) carryOut(i int, s step) error {
	if p.trial != nil {
		if err := p.trial(i); err != nil {
			return err
		}
	}
	return s.do()
}

// takeBack undoes steps, last first, all that it can.
func (p *Plan) takeBack(done []step) error {
	var all []error
	for _, s := range slices.Backward(done) {
		if err := s.undo(); err != nil {
			all = append(all, fmt.Errorf("take back %q: %w", s.what, err))
		}
	}
	return errors.Join(all...)
}
