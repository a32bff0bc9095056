// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/healthcheck"
)

// TestProbingEnds has an agent stop while its probes would go on: it is not to find itself missing.
func TestProbingEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		prober, err := healthcheck.New(healthcheck.Config{
			Label: "self", Network: "udp", Server: netip.MustParseAddrPort("192.0.2.1:53"), Name: "www.test.", Type: dns.TypeA,
			Interval: time.Second, Timeout: time.Second, Now: time.Now,
			Dial: func(ctx context.Context, _ string, _ netip.AddrPort) (net.Conn, error) {
				<-ctx.Done()
				return nil, errors.New("no server")
			},
		})
		assert.NoError(t, err)
		serves, stopped := make(chan struct{}), make(chan struct{})
		close(serves)
		ended := make(chan error, 1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := configuredProbe{Prober: prober, after: serves, until: stopped}
		go func() { ended <- p.Run(ctx) }()
		time.Sleep(100 * time.Millisecond) // into the first question
		close(stopped)
		synctest.Wait()
		select {
		case err := <-ended:
			if err != nil || prober.Stats().Known {
				t.Errorf("%v, %+v: want the question forgotten", err, prober.Stats())
			}
		default:
			t.Error("it asks on")
		}
	})
}
