package packet

import (
	"encoding/hex"
	"testing"
	"time"
)

func TestPcap(t *testing.T) {
	b := make([]byte, PcapFileBytes+PcapRecordBytes)
	n := PutPcapFile(b, LinkTypeRaw, 65535)
	n += PutPcapRecord(b[n:], time.Unix(0x01020304, 999_999_999), 60, 1500)
	want := "4d3cb2a1" + "0200" + "0400" + "00000000" + "00000000" + "ffff0000" + "65000000" +
		"04030201" + "ffc99a3b" + "3c000000" + "dc050000"
	if got := hex.EncodeToString(b[:n]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
