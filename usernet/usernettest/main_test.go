package usernettest_test

import (
	"flag"
	"os"
	"testing"

	"cleat/lab"
	"cleat/usernet/usernettest"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "4") // most of the time the cases wait for timeouts
	usernettest.RunChild()
	answerStack()
	answerRelay()
	os.Exit(lab.RunTests(m))
}
