package ipam

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// The file of a hint has a header, then one byte for each address of the space, which has the bits
// taken and former. A byte can be written without reading its neighbours, so no lock is needed. The
// file is sparse.
const (
	taken  = 1 << 0 // the address has an entry
	former = 1 << 1 // it had one that was removed, since the hint was made

	headerLen = 128
	cursorAt  = 120 // the header's last 8 bytes are the cursor, little-endian

	// chunkLen is the number of bytes read at once: a page, the unit of sparse files.
	chunkLen = 4096
)

// hint is the open file that says which addresses of a subnet are taken. It may be wrong, as
// only the entries decide. So errors of the file are ignored.
type hint struct {
	space
	file   *os.File // nil if it can't be opened: its methods then return errors
	cursor int      // offset that the next search begins at
	late   bool     // it was rebuilt from entries, so it does not know which were removed before
	memory [][]byte // the bytes in chunks, after a rebuild; a nil chunk has only zeros
	buffer [chunkLen]byte
}

func hintPath(dir string, subnet netip.Prefix) string {
	return filepath.Join(dir, "."+strings.ReplaceAll(subnet.String(), "/", "_")+".hint")
}

// openHint opens the hint of a subnet. flags may be os.O_CREATE.
func (p *Pool) openHint(s *Subnet, flags int) *hint {
	file, err := os.OpenFile(hintPath(p.Dir, s.Prefix), os.O_RDWR|syscall.O_NOFOLLOW|flags, 0o644)
	if err != nil {
		file = nil
	}
	return &hint{space: s.space(), file: file}
}

func (h *hint) close() { h.file.Close() }

func (h *hint) fileLen() int64 { return headerLen + int64(h.size) }

// title returns the header without the cursor. It differs if First or Last of the subnet have
// been changed.
func (h *hint) title() []byte {
	b := make([]byte, 0, headerLen)
	b = fmt.Appendf(b, "cleat address hint 2: %d from %s\n", h.size, h.first)
	if b = b[:cursorAt]; h.late {
		b[cursorAt-1] = 1
	}
	return b
}

// load reads the header. It reports whether the file is complete and made for this space.
func (h *hint) load() bool {
	info, err := h.file.Stat()
	if err != nil || info.Size() != h.fileLen() {
		return false
	}
	var b [headerLen]byte
	if _, err := h.file.ReadAt(b[:], 0); err != nil {
		return false
	}
	h.late = b[cursorAt-1] != 0
	if !bytes.Equal(b[:cursorAt], h.title()) {
		return false
	}
	h.cursor = 0
	if c := binary.LittleEndian.Uint64(b[cursorAt:]); c < uint64(h.size) {
		h.cursor = int(c)
	}
	return true
}

// rebuild sets the hint from the names of the entries, in memory and in the file. The caller
// holds the pool's lock, so that no address is released meanwhile.
func (h *hint) rebuild(names []string) {
	info, err := h.file.Stat()
	h.late = err != nil || info.Size() > 0
	h.memory = make([][]byte, (h.size+chunkLen-1)/chunkLen)
	for _, name := range names {
		addr, ok := parseName(name)
		if !ok {
			continue
		}
		if offset, ok := h.offset(addr); ok {
			h.setMemory(offset, taken)
			h.late = true
		}
	}
	h.save()
}

func (h *hint) setMemory(offset int, bits byte) {
	i := offset / chunkLen
	if h.memory[i] == nil {
		h.memory[i] = make([]byte, min(chunkLen, h.size-i*chunkLen))
	}
	h.memory[i][offset%chunkLen] = bits
}

// save writes the file, the header last: until then the file is not valid.
func (h *hint) save() {
	if h.file.Truncate(0) != nil || h.file.Truncate(h.fileLen()) != nil {
		return
	}
	for i, chunk := range h.memory {
		if chunk == nil {
			continue
		}
		if _, err := h.file.WriteAt(chunk, headerLen+int64(i)*chunkLen); err != nil {
			return
		}
	}
	_, _ = h.file.WriteAt(binary.LittleEndian.AppendUint64(h.title(), uint64(h.cursor)), 0)
}

// get returns the bits of an address.
func (h *hint) get(offset int) byte { return h.read(offset, offset+1)[0] }

// set sets the bits of an address.
func (h *hint) set(offset int, bits byte) {
	if h.memory != nil {
		h.setMemory(offset, bits)
	}
	_, _ = h.file.WriteAt([]byte{bits}, headerLen+int64(offset))
}

// advance moves the cursor behind an address.
func (h *hint) advance(offset int) {
	next := uint64(offset+1) % uint64(h.size)
	_, _ = h.file.WriteAt(binary.LittleEndian.AppendUint64(nil, next), cursorAt)
}

// next returns the offset of the first address in [from, end) that is free according to the
// hint and in no block; end if there is none.
func (h *hint) next(from, end int) int {
	for from < end {
		chunk := h.read(from, min(end, from-from%chunkLen+chunkLen))
		i := slices.IndexFunc(chunk, func(bits byte) bool { return bits&taken == 0 })
		if i < 0 {
			from += len(chunk)
			continue
		}
		from += i
		after := h.skip(from)
		if after == from {
			return from
		}
		from = after
	}
	return end
}

// zeros is a chunk of free addresses. Nobody writes to it.
var zeros [chunkLen]byte

// read returns the bytes of [from, to), which is part of one chunk. They are valid until the
// next call. Bytes that can't be read are 0.
func (h *hint) read(from, to int) []byte {
	if h.memory != nil {
		chunk := h.memory[from/chunkLen]
		if chunk == nil {
			chunk = zeros[:]
		}
		return chunk[from%chunkLen:][:to-from]
	}
	b := h.buffer[:to-from]
	n, _ := h.file.ReadAt(b, headerLen+int64(from))
	clear(b[n:])
	return b
}
