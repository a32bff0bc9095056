// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"errors"
	"net/http"
	"sync/atomic"

	utilnet "k8s.io/apimachinery/pkg/util/net"
)

// maxAbandoned is how many requests may hang that nobody waits for any more.
const maxAbandoned = 8

// errHanging is a request that is not even tried.
var errTooManyHung = errors.New("earlier requests hang, perhaps in the kubeconfig's credential plugin")

// An impatientTripper gives a request up when its context ends, though the layers below may not: client-go runs a
// kubeconfig's credential plugin while a request waits, for as long as that takes. What is given up ends by itself or hangs
// on; beyond maxAbandoned no more is begun.
type cancelTripper struct {
	next      http.RoundTripper
	abandoned *atomic.Int64
}

// RoundTrip implements [http.RoundTripper].
func (t cancelTripper) RoundTrip(req *http.Request) (*http.Response, error) {
	if t.abandoned.Load() >= maxAbandoned {
		return nil, errTooManyHung
	}
	type outcome struct {
		resp *http.Response
		err  error
	}
	came := make(chan outcome)
	go func() {
		resp, err := t.next.RoundTrip(req)
		select {
		case came <- outcome{resp, err}:
		case <-req.Context().Done():
			t.abandoned.Add(-1)
			if err == nil {
				_ = resp.Body.Close()
			}
		}
	}()
	select {
	case o := <-came:
		return o.resp, o.err
	case <-req.Context().Done():
		t.abandoned.Add(1)
		return nil, req.Context().Err()
	}
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] calls.
func (t cancelTripper) CloseIdleConnections() { utilnet.CloseIdleConnectionsFor(t.next) }
