// SPDX-License-Identifier: Apache-2.0

package upstream_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/upstream"
)

func TestFailureText(t *testing.T) {
	t.Parallel()
	cause := errors.New("receiving: i/o timeout")
	tests := []struct {
		failure upstream.Failure
		want    string
	}{
		{upstream.Failure{Reason: upstream.Network, Err: cause}, "asking upstreams: network: receiving: i/o timeout"},
		{upstream.Failure{Reason: upstream.Timeout, Err: cause}, "asking upstreams: timeout: receiving: i/o timeout"},
		{upstream.Failure{Reason: upstream.Malformed, Err: cause}, "asking upstreams: malformed: receiving: i/o timeout"},
		{upstream.Failure{Reason: upstream.Rcode, Rcode: 5, Err: cause}, "asking upstreams: rcode 5"},
		{
			upstream.Failure{Reason: upstream.NoUpstream, Err: upstream.ErrNoUpstream},
			"asking upstreams: no-upstream: no usable upstream",
		},
	}
	for _, tt := range tests {
		assert.Equal(t, "error", tt.want, tt.failure.Error())
		if server, cause := tt.failure.Details(); server != "" || cause != strings.ReplaceAll(tt.failure.Reason.String(), "-", "_") {
			t.Errorf("%v: failed by %q, cause %q", &tt.failure, server, cause)
		}
		if !errors.Is(&tt.failure, tt.failure.Err) {
			t.Errorf("%v does not wrap %v", &tt.failure, tt.failure.Err)
		}
	}
}

// Metric labels are a closed set: each cause has a unique one.
func TestCauseLabels(t *testing.T) {
	t.Parallel()
	got := make([]string, 0, upstream.NumCauses)
	for cause := range upstream.NumCauses {
		got = append(got, cause.String())
	}
	want := []string{
		"timeout", "conn_refused", "network", "limit", "malformed", "mismatch",
		"servfail", "refused", "formerr", "notimp", "rcode", "tls", "lame",
	}
	assert.Same(t, "labels", want, got)
}
