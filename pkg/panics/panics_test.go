// SPDX-License-Identifier: Apache-2.0

package panics_test

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nodecache/node-cache/pkg/panics"
)

func TestGuard(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var count atomic.Uint64
	g := panics.Guard{Where: "cache", Log: slog.New(slog.NewTextHandler(&log, nil)), Count: &count}
	other := errors.New("other")
	if err := g.Do(t.Context(), func() error { return other }); !errors.Is(err, other) || count.Load() != 0 || log.Len() > 0 {
		t.Errorf("got %v, count %d, log %q; want the function's own error only", err, count.Load(), &log)
	}
	err := g.Do(t.Context(), panicking)
	if !errors.Is(err, panics.Err) || count.Load() != 1 {
		t.Errorf("got %v, count %d; want %v, 1", err, count.Load(), panics.Err)
	}
	for _, want := range []string{"where=cache", `panic="index out of range"`, "panics_test.panicking"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, &log)
		}
	}
}

func panicking() error { panic("index out of range") }
