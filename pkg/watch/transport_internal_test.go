// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/nodecache/node-cache/internal/assert"
)

// roundTrips is a round tripper made of a function.
type roundTrips func(*http.Request) (*http.Response, error)

// RoundTrip implements [http.RoundTripper].
func (t roundTrips) RoundTrip(req *http.Request) (*http.Response, error) { return t(req) }

// A body records whether it was closed.
type body struct {
	io.Reader
	closed *atomic.Int64
}

// Close implements [io.Closer].
func (b body) Close() error {
	b.closed.Add(1)
	return nil
}

// TestTripper has requests hang below, as with a credential plugin that never ends: each ends with its context, and
// the number that keeps hanging is bounded.
func TestTripper(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var begun, closed atomic.Int64
		plugin := make(chan struct{})
		below := roundTrips(func(*http.Request) (*http.Response, error) {
			begun.Add(1)
			<-plugin
			return &http.Response{StatusCode: http.StatusOK, Body: body{strings.NewReader("late"), &closed}}, nil
		})
		rt := &tripper{next: below, most: 1 << 10, count: new(atomic.Uint64)}
		trip := func(ctx context.Context) (string, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://api.test/", http.NoBody)
			assert.NoError(t, err)
			resp, err := rt.RoundTrip(req)
			if err != nil {
				return "", err
			}
			defer func() { _ = resp.Body.Close() }()
			text, err := io.ReadAll(resp.Body)
			return string(text), err
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for i := range maxAbandoned + 3 {
			want := context.Canceled
			if i >= maxAbandoned {
				want = errTooManyHung
			}
			if _, err := trip(gone); !errors.Is(err, want) {
				t.Errorf("request %d: %v, want %v", i, err, want)
			}
		}
		synctest.Wait()
		assert.Equal(t, "requests were sent", maxAbandoned, begun.Load())
		close(plugin)
		synctest.Wait()
		assert.Equal(t, "late answers were closed", maxAbandoned, closed.Load())
		if text, err := trip(t.Context()); text != "late" || err != nil {
			t.Errorf("after the plugin ended: %q, %v", text, err)
		}
	})
}
