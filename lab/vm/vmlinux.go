package vm

import (
	"bytes"
	"compress/gzip"
	"context"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Offsets in the setup header of a bzImage (arch/x86/include/uapi/asm/bootparam.h,
// struct setup_header; the header begins at 0x1f1).
const (
	offSetupSects    = 0x1f1
	offMagic         = 0x202 // "HdrS"
	offVersion       = 0x206 // boot protocol, 0x020f is 2.15
	offPayloadOffset = 0x248 // from the start of the protected-mode code
	offPayloadLength = 0x24c
	endOfHeader      = 0x250

	versionPayload     = 0x208 // the first protocol with the payload fields
	defaultSetupSects  = 4     // meaning of 0 in setup_sects
	bytesPerSetupSects = 512
	sizeTrailer        = 4 // the uncompressed size, appended to the payload
)

// errNotBzImage: the kernel image has an unknown format.
var errNotBzImage = errors.New("not a bzImage with boot protocol 2.08 or later")

// payload returns the compressed vmlinux inside a bzImage, with its size trailer.
func payload(bz []byte) ([]byte, error) {
	if len(bz) < endOfHeader || string(bz[offMagic:offMagic+4]) != "HdrS" ||
		binary.LittleEndian.Uint16(bz[offVersion:]) < versionPayload {
		return nil, errNotBzImage
	}
	sects := uint64(bz[offSetupSects])
	if sects == 0 {
		sects = defaultSetupSects
	}
	start := (sects+1)*bytesPerSetupSects + uint64(binary.LittleEndian.Uint32(bz[offPayloadOffset:]))
	end := start + uint64(binary.LittleEndian.Uint32(bz[offPayloadLength:]))
	if end > uint64(len(bz)) || end-start < 2*sizeTrailer {
		return nil, fmt.Errorf("%w: payload %d…%d of a file of %d bytes", errNotBzImage, start, end, len(bz))
	}
	return bz[start:end], nil
}

// compressions are the formats that Debian has used for kernels. A command reads standard
// input and writes standard output.
var compressions = []struct {
	suffix, magic string
	command       []string // nil: the standard library
}{
	{".gz", "\x1f\x8b", nil},
	{".xz", "\xfd7zXZ\x00", []string{"xz", "-dc"}},
	{".zst", "\x28\xb5\x2f\xfd", []string{"zstd", "-dcq"}},
}

// extractVmlinux returns the ELF kernel inside a bzImage.
func extractVmlinux(ctx context.Context, bz []byte) ([]byte, error) {
	p, err := payload(bz)
	if err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(p[len(p)-sizeTrailer:])
	for _, c := range compressions {
		if !bytes.HasPrefix(p, []byte(c.magic)) {
			continue
		}
		image, err := decompress(ctx, p, c.command)
		if err != nil {
			return nil, fmt.Errorf("decompress kernel (%s): %w", c.suffix, err)
		}
		if uint32(len(image)) != size {
			return nil, fmt.Errorf("decompress kernel (%s): got %d bytes, want %d", c.suffix, len(image), size)
		}
		if !bytes.HasPrefix(image, []byte(elf.ELFMAG)) {
			return nil, errors.New("decompress kernel: not an ELF file")
		}
		return image, nil
	}
	return nil, fmt.Errorf("decompress kernel: unknown compression % x", p[:6])
}

// decompress decompresses a payload by a command, or by gzip if command is nil. The size
// trailer is part of a gzip stream, but not of the other formats.
func decompress(ctx context.Context, p []byte, command []string) ([]byte, error) {
	if command == nil {
		z, err := gzip.NewReader(bytes.NewReader(p))
		if err != nil {
			return nil, err
		}
		z.Multistream(false)
		return io.ReadAll(z)
	}
	return runOn(ctx, bytes.NewReader(p[:len(p)-sizeTrailer]), "", command[0], command[1:]...)
}
