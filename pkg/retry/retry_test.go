// SPDX-License-Identifier: Apache-2.0

package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/pkg/retry"
)

func TestSleep(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := retry.Sleep(t.Context(), time.Hour); err != nil || time.Since(began) != time.Hour {
			t.Errorf("got %v after %v, want no error after an hour", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began = time.Now()
		if err := retry.Sleep(ctx, time.Hour); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
			t.Errorf("got %v after %v, want the context's error after a minute", err, time.Since(began))
		}
	})
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	b := retry.Backoff{First: time.Second, Last: 5 * time.Second}
	for range 2 {
		for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second} {
			if got := b.Next(); got < want || got > want+want/2 {
				t.Errorf("got %v, want %v and up to half of it", got, want)
			}
		}
		b.Reset()
	}
}

// TestBackoffBegin fails attempts at once, after long, and at once again.
func TestBackoffBegin(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := retry.Backoff{First: time.Second, Last: 4 * time.Second}
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
