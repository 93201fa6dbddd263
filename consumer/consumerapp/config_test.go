package consumerapp

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/stockpipe/stockpipe/pkg/config"
)

func TestTheHelpListsEverySetting(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	_, err := config.ParseArgs(Name, Description, &Config{}, []string{"-help"}, &out)
	if !errors.Is(err, config.ErrHelp) {
		t.Fatal(err)
	}
	for _, want := range []string{"--consumer-id", "STOCKPIPE_CONSUMER_ID", "--block=1s", "--batch=1000", "--log-keep=60s", "--healthcheck", "--ops-listen=\"127.0.0.1:8082\"", "--redis-url", "--log-format"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

func TestASettingOutOfBoundsIsNamed(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"--block", "0s"}, {"--block", "1m"}, {"--batch", "0"}, {"--batch", "10001"}, {"--log-keep", "1ms"}, {"--log-keep", "-5s"}, {"--log-keep", "25h"}, {"--consumer-id", "a b"}} {
		_, err := config.ParseArgs(Name, Description, &Config{}, args, nil)
		if err == nil || !strings.Contains(err.Error(), strings.TrimLeft(args[0], "-")) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestNoTwoProcessesHaveOneName(t *testing.T) {
	t.Parallel()
	a, b := Config{}.id(), Config{}.id()
	if a == b || a == "" || config.CheckID("consumer-id", a) != nil {
		t.Errorf("%s and %s", a, b)
	}
}

func TestRepeatsOfATroubleAreCountedNotWritten(t *testing.T) {
	t.Parallel()
	core, seen := observer.New(zap.InfoLevel)
	v := newVoice(zap.New(core))
	for range 1000 {
		v.tell(0, "missing", errors.New("no log"))
		v.tell(1, "redis", errors.New("no answer"))
	}
	if seen.Len() != 2 {
		t.Fatalf("%d lines for two troubles", seen.Len())
	}
	v.words["missing"].at = time.Now().Add(-repeatAfter)
	v.tell(0, "missing", errors.New("no log"))
	if last := seen.All()[2].ContextMap(); last["repeats"] != int64(999) || last["shard"] != int64(0) {
		t.Errorf("the next line has %v", last)
	}
}
