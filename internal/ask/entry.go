//go:build amd64 || arm64

package ask

import "unsafe"

// entry is where the process begins.
func entry()

var _ = entry

// begin is atEntry for entry, which can't call it by name: that would be by a wrapper that
// needs the runtime.
var begin = atEntry

// atEntry asks, if the process's first words say so: how many arguments there are, where
// each is, 0, where each variable is, 0.
func atEntry(words unsafe.Pointer, scratch *[scratchSize]byte) {
	argc := *(*uintptr)(words)
	args, end := texts(unsafe.Add(words, wordSize))
	env, _ := texts(unsafe.Add(end, wordSize))
	if uintptr(end)-uintptr(words) != (argc+1)*wordSize || args == nil {
		return
	}
	asked = true
	ask(args, env, scratch[:])
}

const wordSize = unsafe.Sizeof(uintptr(0))

// texts are the strings that a list of pointers is of, and the list's end. The kernel puts
// them one behind the other; nil: somebody else did otherwise.
func texts(list unsafe.Pointer) (all []byte, end unsafe.Pointer) {
	first := *(*unsafe.Pointer)(list)
	next, apart := first, false
	for ; *(*unsafe.Pointer)(list) != nil; list = unsafe.Add(list, wordSize) {
		apart = apart || *(*unsafe.Pointer)(list) != next
		for !apart {
			c := *(*byte)(next)
			next = unsafe.Add(next, 1)
			if c == 0 {
				break
			}
		}
	}
	if first == nil || apart {
		return nil, list
	}
	return unsafe.Slice((*byte)(first), uintptr(next)-uintptr(first)), list
}
