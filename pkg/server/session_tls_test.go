// SPDX-License-Identifier: Apache-2.0

package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/server"
	"github.com/nodecache/node-cache/pkg/upstream/upstreamtest"
)

// tlsPair returns the configurations of a server and of its clients. A pipe has no room for the session tickets that a server sends
// before a client reads.
func tlsPair(t *testing.T, pipe bool) (server, client *tls.Config) {
	t.Helper()
	authority, roots := upstreamtest.NewAuthority(t, time.Now()), x509.NewCertPool()
	roots.AppendCertsFromPEM(authority.PEM())
	own := authority.Issue(t, time.Now().Add(24*time.Hour), "resolver")
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{own}, SessionTicketsDisabled: pipe},
		&tls.Config{MinVersion: tls.VersionTLS12, ServerName: "resolver", RootCAs: roots, NextProtos: []string{"dot"}}
}

// TestOverTLS runs the tests of sessions over TLS, which their harness finds out by the name of the test. It leaves out those that look
// below TLS, those of clients that read bytes of a record, which TLS reads as a whole, and those with too short a FrameTimeout for
// handshakes.
func TestOverTLS(t *testing.T) {
	t.Parallel()
	for _, test := range []func(*testing.T){
		TestTCPAnswersOutOfOrder, TestTCPLargeFrames, TestTCPShortFrames, TestTCPCutByFIN, TestTCPResetHarmsNoOther, TestTCPQueriesWithoutAnswer,
		TestTCPPanicEndsOneSession, TestTCPRepliesFromManyGoroutines, TestTCPWorkersAreReused,
		TestTCPStream, TestTCPStreamOversized, TestTCPStreamLetsOthersThrough, TestTCPStreamToSteadyClient, TestTCPStreamClientGone,
		TestTCPIdle, TestTCPSlowLoris, TestTCPFramesInHalves, TestTCPFrameTimeoutWaitsForPipeline, TestTCPPipelineLimit, TestTCPWriteTimeout,
		TestTCPOverflow, TestTCPRepliesWhileWriting, TestTCPEndedSessionsFreeRoom, TestTCPShedsIdleLongest,
		TestTCPClientsThatDoNotRead, TestTCPDrainUnread, TestTCPDrainWithFullPipeline, TestTCPHandedOverSessionsEnd,
	} {
		name := runtime.FuncForPC(reflect.ValueOf(test).Pointer()).Name()
		t.Run(name[strings.LastIndex(name, ".Test")+len(".Test"):], test)
	}
}

// TestTLSHandshakes has clients that do not complete a handshake: they are closed, also while the server ends.
func TestTLSHandshakes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		sent string
		ends bool // the server, meanwhile
		open time.Duration
	}{
		{name: "nothing", open: 3 * time.Second},
		{name: "a part", sent: "\x16\x03\x01\x02\x00\x01", open: 3 * time.Second},
		{name: "a query without TLS", sent: string(queries(1, "a.example"))},
		{name: "nothing, while the server ends", ends: true, open: 3 * time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				secured, _ := tlsPair(t, true)
				w := servePipes(t, server.TCPConfig{TLS: secured}, nil)
				c, began := w.dial(), time.Now()
				go func() { _, _ = io.WriteString(c, tt.sent) }()
				if tt.ends {
					go w.stop()
				}
				_, _ = io.Copy(io.Discard, c)
				assert.Equal(t, "closed after", tt.open, time.Since(began))
				synctest.Wait()
				w.wantStats(server.TCPStats{Accepted: 1, Handshakes: 1})
			})
		})
	}
}

// TestTLSHandshakeRate has many clients connect at once: handshakeRate of them do at once, and the others wait their turn.
func TestTLSHandshakeRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const clients = 600
		secured, client := tlsPair(t, true)
		w := servePipes(t, server.TCPConfig{TLS: secured, MaxPerClient: clients}, nil)
		w.tls = client
		began := time.Now()
		var all sync.WaitGroup
		for range clients {
			all.Go(func() { w.dial() })
		}
		all.Wait()
		assert.Equal(t, "the last one waited for", 200*time.Millisecond, time.Since(began).Round(10*time.Millisecond))
	})
}
