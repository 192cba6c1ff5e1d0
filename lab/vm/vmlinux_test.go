package vm

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"testing"

	"cleat/internal/program"
)

// bzImage wraps a compressed kernel as the boot protocol requires.
func bzImage(sects byte, version uint16, offset int, compressed []byte) []byte {
	real := int(sects)
	if real == 0 {
		real = defaultSetupSects
	}
	b := make([]byte, (real+1)*bytesPerSetupSects+offset)
	b[offSetupSects] = sects
	copy(b[offMagic:], "HdrS")
	binary.LittleEndian.PutUint16(b[offVersion:], version)
	binary.LittleEndian.PutUint32(b[offPayloadOffset:], uint32(offset))
	binary.LittleEndian.PutUint32(b[offPayloadLength:], uint32(len(compressed)))
	return append(append(b, compressed...), "what follows the payload"...)
}

// gzipped compresses as the kernel's build does: the size trailer is gzip's own.
func gzipped(t *testing.T, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// compressed compresses by a program and appends the size trailer.
func compressed(t *testing.T, b []byte, name string, args ...string) []byte {
	t.Helper()
	if _, err := program.Find(name); err != nil {
		t.Skip(err)
	}
	cmd := program.Command(name, args...)
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.AppendUint32(out, uint32(len(b)))
}

func TestExtractVmlinux(t *testing.T) {
	kernel := append([]byte("\x7fELF"), bytes.Repeat([]byte("kernel "), 1000)...)
	tests := []struct {
		name  string
		image func(t *testing.T) []byte
	}{
		{"gzip", func(t *testing.T) []byte { return bzImage(39, 0x20f, 716, gzipped(t, kernel)) }},
		{"default setup size", func(t *testing.T) []byte { return bzImage(0, 0x208, 0, gzipped(t, kernel)) }},
		{"xz", func(t *testing.T) []byte {
			return bzImage(39, 0x20f, 716, compressed(t, kernel, "xz", "--check=crc32", "-c"))
		}},
		{"zstd", func(t *testing.T) []byte { return bzImage(39, 0x20f, 716, compressed(t, kernel, "zstd", "-qc")) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := extractVmlinux(t.Context(), tt.image(t))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, kernel) {
				t.Errorf("got %d bytes, want the %d that went in", len(got), len(kernel))
			}
		})
	}
}

func TestExtractVmlinuxErrors(t *testing.T) {
	kernel := []byte("\x7fELF and more")
	whole := bzImage(39, 0x20f, 716, gzipped(t, kernel))
	wrongSize := gzipped(t, kernel)
	wrongSize = append(wrongSize[:len(wrongSize)-4:len(wrongSize)-4], 0, 0, 0, 1)
	tests := []struct {
		name  string
		image []byte
		is    error // nil: any error
	}{
		{"empty", nil, errNotBzImage},
		{"ELF already", append(kernel, make([]byte, 1024)...), errNotBzImage},
		{"old protocol", bzImage(39, 0x207, 716, gzipped(t, kernel)), errNotBzImage},
		{"cut short", whole[:len(whole)-40], errNotBzImage},
		{"unknown compression", bzImage(39, 0x20f, 716, []byte("BZh91AY&SY")), nil},
		{"no kernel inside", bzImage(39, 0x20f, 716, gzipped(t, []byte("text"))), nil},
		{"size differs", bzImage(39, 0x20f, 716, wrongSize), nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := extractVmlinux(t.Context(), tt.image)
			if err == nil {
				t.Fatalf("got %d bytes", len(got))
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("got %v, want %v", err, tt.is)
			}
		})
	}
}
