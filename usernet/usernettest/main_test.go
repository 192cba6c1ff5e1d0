package usernettest_test

import (
	"flag"
	"os"
	"testing"

	"cleat/lab"
	"cleat/usernet/usernettest"
)

func TestMain(m *testing.M) {
	flag.Set("test.parallel", "4") // they wait for each other's timeouts most of the time
	usernettest.RunChild()
	answerStack()
	answerRelay()
	os.Exit(lab.RunTests(m))
}
