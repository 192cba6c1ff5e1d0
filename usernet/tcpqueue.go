package usernet

// outChunk is bytes from the guest that the host's socket has not taken yet.
type outChunk struct {
	buf      *buffer
	from, to int
	urgent   bool // a single byte, to be sent as urgent
}

// outQueue holds the guest's bytes while the host's socket is full. The offered window
// bounds it.
type outQueue struct {
	chunks []outChunk
	head   int
	bytes  int
}

func (q *outQueue) front() *outChunk { return &q.chunks[q.head] }

func (q *outQueue) push(c outChunk) {
	q.chunks = append(q.chunks, c)
	q.bytes += c.to - c.from
}

// append adds bytes behind the last chunk, if that has room for all of them.
func (q *outQueue) append(data []byte) bool {
	if q.bytes == 0 {
		return false
	}
	last := &q.chunks[len(q.chunks)-1]
	if last.urgent || len(last.buf.mem)-last.to < len(data) {
		return false
	}
	last.to += copy(last.buf.mem[last.to:], data)
	q.bytes += len(data)
	return true
}

// take removes n bytes that were sent from the front chunk.
func (q *outQueue) take(n int) {
	q.bytes -= n
	c := q.front()
	if c.from += n; c.from < c.to {
		return
	}
	c.buf.free()
	*c = outChunk{}
	if q.head++; q.head == len(q.chunks) {
		q.chunks, q.head = q.chunks[:0], 0
	}
}

func (q *outQueue) clear() {
	for _, c := range q.chunks[q.head:] {
		c.buf.free()
	}
	*q = outQueue{}
}

// sentFrame is a frame that the guest has not acknowledged. To send it again, only its
// acknowledgement number and window have to be updated.
type sentFrame struct {
	buf      *buffer
	from, to int // the frame with its virtio header in buf
	seq      uint32
	payload  int
}

// sentQueue holds the frames that the guest has not acknowledged.
type sentQueue struct {
	frames []sentFrame
	head   int
	bytes  int
}

func (q *sentQueue) len() int { return len(q.frames) - q.head }

func (q *sentQueue) push(s sentFrame) {
	if q.head > 0 && len(q.frames) == cap(q.frames) {
		n := copy(q.frames, q.frames[q.head:])
		clear(q.frames[n:])
		q.frames, q.head = q.frames[:n], 0
	}
	q.frames = append(q.frames, s)
	q.bytes += s.payload
}

// acknowledge frees the frames that lie wholly before una.
func (q *sentQueue) acknowledge(una uint32) {
	for q.head < len(q.frames) {
		s := &q.frames[q.head]
		if before(una, s.seq+uint32(s.payload)) {
			return
		}
		q.bytes -= s.payload
		s.buf.free()
		*s = sentFrame{}
		q.head++
	}
	q.frames, q.head = q.frames[:0], 0
}

func (q *sentQueue) clear() {
	for _, s := range q.frames[q.head:] {
		s.buf.free()
	}
	*q = sentQueue{}
}
