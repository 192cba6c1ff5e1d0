package firewall

import (
	"encoding/binary"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

var native = binary.NativeEndian

// A batch collects messages that change rules. The kernel applies all of them or none.
type batch struct {
	buf     []byte
	steps   []string // what the message with the sequence number firstSeq+i does
	message int      // where the last message starts
	err     error    // first expression that could not be encoded
}

// firstSeq is the sequence number of a batch's first message. Those of package nlsock on the
// same socket count from 1.
const firstSeq = 1 << 24

// newBatch starts a batch. With generation, the kernel refuses the batch if the rules of the
// namespace have changed since they had that generation; 0: it does not matter.
func newBatch(generation uint32) *batch {
	b := &batch{}
	b.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, "begin")
	if generation != 0 {
		b.uint32(unix.NFNL_BATCH_GENID, generation)
	}
	return b
}

// empty reports whether the batch has no message yet.
func (b *batch) empty() bool { return len(b.steps) == 1 }

// finish completes the batch. The kernel acknowledges its last message.
func (b *batch) finish() ([]byte, error) {
	b.end(b.message)
	flags := native.Uint16(b.buf[b.message+6:])
	native.PutUint16(b.buf[b.message+6:], flags|unix.NLM_F_ACK)
	b.begin(unix.NFNL_MSG_BATCH_END, 0, unix.NFPROTO_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, "end")
	b.end(b.message)
	return b.buf, b.err
}

// change starts a message of the nftables subsystem. The step describes it in errors.
func (b *batch) change(kind, flags uint16, f family, step string) {
	b.begin(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, f.id, 0, step)
}

// begin starts a message with a struct nfgenmsg, and ends the one before.
func (b *batch) begin(kind, flags uint16, family byte, resource uint16, step string) {
	if len(b.steps) > 0 {
		b.end(b.message)
	}
	b.message = len(b.buf)
	b.buf = native.AppendUint32(b.buf, 0) // the length, see end
	b.buf = native.AppendUint16(b.buf, kind)
	b.buf = native.AppendUint16(b.buf, flags|unix.NLM_F_REQUEST)
	b.buf = native.AppendUint32(b.buf, uint32(firstSeq+len(b.steps)))
	b.buf = native.AppendUint32(b.buf, 0) // the kernel knows the port id
	b.buf = append(b.buf, family, unix.NFNETLINK_V0)
	b.buf = binary.BigEndian.AppendUint16(b.buf, resource)
	b.steps = append(b.steps, step)
}

// end sets the length of the message at a position.
func (b *batch) end(at int) { native.PutUint32(b.buf[at:], uint32(len(b.buf)-at)) }

// bytes appends an attribute.
func (b *batch) bytes(kind uint16, data []byte) {
	b.buf = native.AppendUint16(b.buf, uint16(unix.SizeofNlAttr+len(data)))
	b.buf = native.AppendUint16(b.buf, kind)
	b.buf = append(b.buf, data...)
	b.pad()
}

// string appends a string with its NUL.
func (b *batch) string(kind uint16, s string) {
	b.buf = native.AppendUint16(b.buf, uint16(unix.SizeofNlAttr+len(s)+1))
	b.buf = native.AppendUint16(b.buf, kind)
	b.buf = append(b.buf, s...)
	b.buf = append(b.buf, 0)
	b.pad()
}

// uint32 appends a number in network byte order.
func (b *batch) uint32(kind uint16, n uint32) {
	b.buf = native.AppendUint16(b.buf, unix.SizeofNlAttr+4)
	b.buf = native.AppendUint16(b.buf, kind)
	b.buf = binary.BigEndian.AppendUint32(b.buf, n)
}

// nest starts an attribute with attributes inside. The caller passes the result to close.
func (b *batch) nest(kind uint16) (at int) {
	at = len(b.buf)
	b.buf = native.AppendUint16(b.buf, 0)
	b.buf = native.AppendUint16(b.buf, kind|unix.NLA_F_NESTED)
	return at
}

// close ends a nested attribute.
func (b *batch) close(at int) { native.PutUint16(b.buf[at:], uint16(len(b.buf)-at)) }

func (b *batch) pad() {
	for len(b.buf)%unix.NLA_ALIGNTO != 0 {
		b.buf = append(b.buf, 0)
	}
}

// expressions appends the expressions of a rule.
func (b *batch) expressions(f family, exprs []expr.Any) {
	list := b.nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range exprs {
		data, err := expr.Marshal(f.id, e)
		if err != nil && b.err == nil {
			b.err = err
		}
		b.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
	}
	b.close(list)
}
