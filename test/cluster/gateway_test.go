// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/kubetest"
	"github.com/nodecache/node-cache/internal/proctest"
)

// A gateway stands before the API server as a load balancer does: it ends TLS, speaks HTTP/2 to clients, and says 502 while
// there is no server. It keeps account of requests and fails in the ways of such a machine.
type gateway struct {
	kubeconfig string // leads through it, as Admin

	mu       sync.Mutex // guards what follows
	target   *url.URL
	server   http.RoundTripper // to target, with Admin's token
	requests []request
	refusing bool
	cut      context.CancelFunc // ends the requests that are under way
	epoch    context.Context    //nolint:containedctx // of the requests that begin now; ends with cut

	underWay sync.WaitGroup
}

// A request is one that the gateway saw.
type request struct {
	at       time.Time
	resource string
	first    bool // a watch with a first list, or a plain list
}

// startGateway runs a gateway until the test ends.
func startGateway(t *testing.T, c *kubetest.Cluster) *gateway {
	t.Helper()
	g := &gateway{kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	g.epoch, g.cut = context.WithCancel(context.Background())
	g.forwardTo(t, c)
	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.Header.Del("Authorization")
			g.mu.Lock()
			defer g.mu.Unlock()
			r.SetURL(g.target)
		},
		Transport: g, FlushInterval: -1,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	server := httptest.NewUnstartedServer(g.handler(proxy))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(func() {
		g.refuse()
		server.CloseClientConnections()
		server.Close()
	})
	ca := proctest.WriteFile(t, g.kubeconfig+".ca", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})))
	assert.NoError(t, kubetest.WriteKubeconfig(g.kubeconfig, ca, server.URL, "admin", "anything"))
	return g
}

// forwardTo has the requests from now on go to the API server of a cluster.
func (g *gateway) forwardTo(t *testing.T, c *kubetest.Cluster) {
	t.Helper()
	target, err := url.Parse(c.Server())
	assert.NoError(t, err)
	server, err := rest.TransportFor(c.Config(kubetest.Admin))
	assert.NoError(t, err)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target, g.server = target, server
}

// RoundTrip implements [http.RoundTripper] for the requests that pass.
func (g *gateway) RoundTrip(r *http.Request) (*http.Response, error) {
	g.mu.Lock()
	server := g.server
	g.mu.Unlock()
	return server.RoundTrip(r)
}

// handler counts a request and lets it pass, or not.
func (g *gateway) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		g.mu.Lock()
		g.requests = append(g.requests, request{
			at: time.Now(), resource: path.Base(r.URL.Path), first: query.Get("watch") == "" || query.Get("sendInitialEvents") == "true",
		})
		refusing, epoch := g.refusing, g.epoch
		if !refusing {
			g.underWay.Add(1)
			defer g.underWay.Done()
		}
		g.mu.Unlock()
		if refusing {
			http.Error(w, "no server is up", http.StatusServiceUnavailable)
			return
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(epoch, cancel)()
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// refuse ends the requests that are under way, and has all others refused until accept.
func (g *gateway) refuse() {
	g.mu.Lock()
	g.refusing = true
	g.cut()
	g.mu.Unlock()
	g.underWay.Wait()
}

func (g *gateway) accept() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refusing = false
	g.epoch, g.cut = context.WithCancel(context.Background())
}

// since are the requests from that time on.
func (g *gateway) since(from time.Time) []request {
	g.mu.Lock()
	defer g.mu.Unlock()
	i := slices.IndexFunc(g.requests, func(r request) bool { return !r.at.Before(from) })
	if i < 0 {
		return nil
	}
	return slices.Clone(g.requests[i:])
}
