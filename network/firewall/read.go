package firewall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"cleat/internal/nlsock"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// A snapshot is what the kernel has of both tables.
type snapshot struct {
	generation uint32
	tables     map[byte]*tableSnapshot // by family; those that exist
}

type tableSnapshot struct {
	flags  uint32
	owner  uint32 // the port id of the owner's socket
	sets   map[string]setSnapshot
	chains map[string]chainSnapshot
}

type setSnapshot struct {
	flags, keyBytes, valueBytes uint32
	elements                    elements
}

type chainSnapshot struct {
	hook  *hook
	drops bool     // its policy
	rules [][]byte // NFTA_RULE_EXPRESSIONS of each
}

// readAttempts bounds how often a snapshot is read again because others have changed rules
// meanwhile.
const readAttempts = 5

// snapshot reads both tables. It is consistent: nothing has changed while it was read.
func (k *kernel) snapshot(name string) (*snapshot, error) {
	for range readAttempts {
		s, err := k.trySnapshot(name)
		if errors.Is(err, nlsock.ErrInterrupted) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read table %s: %w", name, err)
		}
		now, err := k.reads.RulesGeneration()
		if err != nil {
			return nil, err
		}
		if now == s.generation {
			return s, nil
		}
	}
	return nil, fmt.Errorf("read table %s: %w", name, errBusy)
}

var errBusy = errors.New("other programs change rules all the time")

func (k *kernel) trySnapshot(name string) (*snapshot, error) {
	generation, err := k.reads.RulesGeneration()
	if err != nil {
		return nil, err
	}
	s := &snapshot{generation: generation, tables: map[byte]*tableSnapshot{}}
	for _, f := range families {
		t, err := k.readTable(name, f)
		if err != nil {
			return nil, err
		}
		if t != nil {
			s.tables[f.id] = t
		}
	}
	return s, nil
}

// tableOwner is NFTA_TABLE_OWNER (enum nft_table_attributes).
const tableOwner = 7

// readTable returns nil if the table does not exist.
func (k *kernel) readTable(name string, f family) (*tableSnapshot, error) {
	var t *tableSnapshot
	err := k.dump(unix.NFT_MSG_GETTABLE, f, nil, func(b []byte) {
		a := attrs(b)
		if text(a.get(unix.NFTA_TABLE_NAME)) == name {
			t = &tableSnapshot{flags: number(a.get(unix.NFTA_TABLE_FLAGS)), owner: number(a.get(tableOwner)), sets: map[string]setSnapshot{}, chains: map[string]chainSnapshot{}}
		}
	})
	if t == nil || err != nil {
		return nil, err
	}
	if err := k.readChains(name, f, t); err != nil {
		return nil, err
	}
	return t, k.readSets(name, f, t)
}

func (k *kernel) readChains(name string, f family, t *tableSnapshot) error {
	err := k.dump(unix.NFT_MSG_GETCHAIN, f, nil, func(b []byte) {
		a := attrs(b)
		if text(a.get(unix.NFTA_CHAIN_TABLE)) == name {
			t.chains[text(a.get(unix.NFTA_CHAIN_NAME))] = readChain(a)
		}
	})
	if err != nil {
		return err
	}
	filter := stringAttr(unix.NFTA_RULE_TABLE, name)
	return k.dump(unix.NFT_MSG_GETRULE, f, filter, func(b []byte) {
		a := attrs(b)
		if text(a.get(unix.NFTA_RULE_TABLE)) == name { // kernels before 4.7 ignore the filter
			c := t.chains[text(a.get(unix.NFTA_RULE_CHAIN))]
			c.rules = append(c.rules, bytes.Clone(a.get(unix.NFTA_RULE_EXPRESSIONS)))
			t.chains[text(a.get(unix.NFTA_RULE_CHAIN))] = c
		}
	})
}

func readChain(a attrs) chainSnapshot {
	at := a.get(unix.NFTA_CHAIN_HOOK)
	if at == nil {
		return chainSnapshot{}
	}
	h := attrs(at)
	return chainSnapshot{
		hook: &hook{
			kind:     text(a.get(unix.NFTA_CHAIN_TYPE)),
			number:   number(h.get(unix.NFTA_HOOK_HOOKNUM)),
			priority: int32(number(h.get(unix.NFTA_HOOK_PRIORITY))),
		},
		drops: number(a.get(unix.NFTA_CHAIN_POLICY)) == nfDrop,
	}
}

func (k *kernel) readSets(name string, f family, t *tableSnapshot) error {
	filter := stringAttr(unix.NFTA_SET_TABLE, name)
	err := k.dump(unix.NFT_MSG_GETSET, f, filter, func(b []byte) {
		a := attrs(b)
		t.sets[text(a.get(unix.NFTA_SET_NAME))] = setSnapshot{
			flags: number(a.get(unix.NFTA_SET_FLAGS)), keyBytes: number(a.get(unix.NFTA_SET_KEY_LEN)), valueBytes: number(a.get(unix.NFTA_SET_DATA_LEN)),
			elements: elements{},
		}
	})
	if err != nil {
		return err
	}
	for set, s := range t.sets {
		filter := append(stringAttr(unix.NFTA_SET_ELEM_LIST_TABLE, name), stringAttr(unix.NFTA_SET_ELEM_LIST_SET, set)...)
		err := k.dump(unix.NFT_MSG_GETSETELEM, f, filter, func(b []byte) {
			for _, item := range nlsock.Attributes(attrs(b).get(unix.NFTA_SET_ELEM_LIST_ELEMENTS)) {
				e, value := readElement(item)
				s.elements[e] = value
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// readElement decodes an element and its value, as set.value encodes it.
func readElement(item []byte) (e element, value string) {
	for kind, data := range nlsock.Attributes(item) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.key = string(attrs(data).get(unix.NFTA_DATA_VALUE))
		case nftables.NFTA_SET_ELEM_KEY_END:
			e.end = string(attrs(data).get(unix.NFTA_DATA_VALUE))
		case unix.NFTA_SET_ELEM_DATA:
			value = readValue(attrs(data))
		}
	}
	return e, value
}

func readValue(a attrs) string {
	verdict := a.get(unix.NFTA_DATA_VERDICT)
	if verdict == nil {
		return string(a.get(unix.NFTA_DATA_VALUE))
	}
	v := attrs(verdict)
	switch code := int32(number(v.get(unix.NFTA_VERDICT_CODE))); code {
	case nfAccept:
		return verdictAccept
	case nfDrop:
		return verdictDrop
	case unix.NFT_GOTO:
		return "goto " + text(v.get(unix.NFTA_VERDICT_CHAIN))
	default:
		return fmt.Sprintf("verdict %d %s", code, text(v.get(unix.NFTA_VERDICT_CHAIN)))
	}
}

// attrs are encoded attributes.
type attrs []byte

// get returns the attribute of a type; nil if there is none.
func (a attrs) get(kind uint16) []byte {
	data, _ := nlsock.Attribute(a, kind)
	return data
}

// stringAttr encodes an attribute for a filter.
func stringAttr(kind uint16, s string) []byte {
	b := batch{}
	b.string(kind, s)
	return b.buf
}

// includes reports whether every attribute in want is also in got, with the same value. The
// kernel returns what it was given, and adds defaults.
func includes(got, want []byte) bool {
	for len(want) >= unix.SizeofNlAttr {
		size, kind := int(native.Uint16(want)), native.Uint16(want[2:])
		data := want[unix.SizeofNlAttr:size]
		want = want[min(padded(size), len(want)):]
		number := kind &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		other, ok := nlsock.Attribute(got, number)
		switch nested := kind&unix.NLA_F_NESTED != 0; {
		case !ok:
			return false
		case nested && !includes(other, data):
			return false
		case !nested && !bytes.Equal(other, data):
			return false
		}
	}
	return true
}

// sameRule reports whether the kernel's list of expressions is that of a rule.
func sameRule(f family, got []byte, r rule) (bool, error) {
	b := batch{}
	b.expressions(f, r.exprs)
	if b.err != nil {
		return false, b.err
	}
	var have [][]byte
	for _, e := range nlsock.Attributes(got) {
		if !convertsNothing(e) {
			have = append(have, e)
		}
	}
	i := 0
	for _, e := range nlsock.Attributes(b.buf[unix.SizeofNlAttr:]) {
		if i >= len(have) || !sameExpression(have[i], e) {
			return false, nil
		}
		i++
	}
	return i == len(have), nil
}

// convertsNothing reports whether an expression converts the byte order of less than one number. nft
// adds that to a rule with ranges of protocols when it loads its own listing.
func convertsNothing(e []byte) bool {
	a := attrs(e)
	if text(a.get(unix.NFTA_EXPR_NAME)) != "byteorder" {
		return false
	}
	data := attrs(a.get(unix.NFTA_EXPR_DATA))
	length, size := data.get(unix.NFTA_BYTEORDER_LEN), data.get(unix.NFTA_BYTEORDER_SIZE)
	return len(length) == 4 && len(size) == 4 && binary.BigEndian.Uint32(length) < binary.BigEndian.Uint32(size)
}

// sameExpression compares the kernel's form of an expression with ours. The kernel does not
// return the number of a lookup's set, which means something within a batch only.
func sameExpression(got, want []byte) bool {
	a, b := attrs(got), attrs(want)
	if !bytes.Equal(a.get(unix.NFTA_EXPR_NAME), b.get(unix.NFTA_EXPR_NAME)) {
		return false
	}
	if text(b.get(unix.NFTA_EXPR_NAME)) != "lookup" {
		return includes(got, want)
	}
	has := attrs(a.get(unix.NFTA_EXPR_DATA))
	for kind, value := range nlsock.Attributes(b.get(unix.NFTA_EXPR_DATA)) {
		if kind != unix.NFTA_LOOKUP_SET_ID && !bytes.Equal(has.get(kind), value) {
			return false
		}
	}
	return true
}

// describe names a hook for messages.
func (h *hook) describe() string {
	if h == nil {
		return "no hook"
	}
	names := []string{"prerouting", "input", "forward", "output", "postrouting"}
	return strings.Join([]string{"type", h.kind, "hook", names[h.number], "priority", fmt.Sprint(h.priority)}, " ")
}
