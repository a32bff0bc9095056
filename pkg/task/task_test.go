// SPDX-License-Identifier: Apache-2.0

package task_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/task"
)

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := task.Sleep(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("got %v after %v, want no error after an hour", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		if err := task.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v, want the context's error after a minute", err, time.Since(began))
		}
	})
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := task.Backoff{First: time.Second, Last: 5 * time.Second}
	for range 2 {
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			if got := b.Next(); got < want || got > want+want/2 {
				t.Errorf("got %v, want %v and up to half of it", got, want)
			}
		}
		b.Reset()
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	var count atomic.Uint64
	g := task.Guard{Where: "cache", Log: slog.New(slog.NewTextHandler(&log, nil)), Count: &count}
	other := errors.New("other")
	if err := g.Do(t.Context(), func() error { return other }); !errors.Is(err, other) || count.Load() != 0 || log.Len() > 0 {
		t.Errorf("got %v, count %d, log %q; want the function's own error only", err, count.Load(), &log)
	}
	err := g.Do(t.Context(), panicking)
	if !errors.Is(err, task.ErrPanic) || count.Load() != 1 {
		t.Errorf("got %v, count %d; want %v, 1", err, count.Load(), task.ErrPanic)
	}
	for _, want := range []string{"where=cache", `panic="index out of range"`, "task_test.panicking"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q: %s", want, &log)
		}
	}
}

func panicking() error { panic("index out of range") }

// TestBackoffBegin fails attempts at once, after long, and at once again.
func TestBackoffBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := task.Backoff{First: time.Second, Last: 4 * time.Second}
		for _, step := range []struct{ lasts, want time.Duration }{
			{0, time.Second}, {0, 2 * time.Second}, {4 * time.Second, 4 * time.Second}, {4*time.Second + 1, time.Second}, {0, 2 * time.Second},
		} {
			b.Begin()
			time.Sleep(step.lasts)
			if got := b.Next(); got < step.want || got > step.want+step.want/2 {
				t.Errorf("after an attempt of %v: got %v, want %v and up to half of it", step.lasts, got, step.want)
			}
		}
	})
}
