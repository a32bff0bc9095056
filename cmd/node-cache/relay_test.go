// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/admin/relay"
	"github.com/nodecache/node-cache/pkg/cli"
)

// TestRelay passes requests on to an agent's socket, until standard input ends: pages that need the token, and why a page is refused.
func TestRelay(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "admin.sock")
	s, err := admin.New(admin.Config{
		Socket: socket, Metrics: http.NotFoundHandler(), Ready: func() error { return nil }, Status: func(named bool) any { return map[string]bool{"named": named} },
	})
	must(t, err)
	must(t, s.Listen(t.Context()))
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx) }()
	near, far := net.Pipe()
	ended := make(chan result, 1)
	go func() {
		var stderr bytes.Buffer
		root := rootCommand()
		root.SetIn(far)
		code := cli.Run(root, []string{"relay", "--admin", "unix:" + socket}, far, &stderr, report)
		ended <- result{code, "", stderr.String()}
	}()
	client, err := relay.Client(t.Context(), near)
	must(t, err)
	get := func(path string) string {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://agent"+path, nil)
		must(t, err)
		reply, err := client.RoundTrip(r)
		must(t, err)
		body, err := io.ReadAll(reply.Body)
		must(t, errors.Join(err, reply.Body.Close()))
		return reply.Status + " " + string(body)
	}
	same(t, "a page", "200 OK {\n  \"named\": true\n}\n", get("/status"))
	same(t, "no page", "404 Not Found 404 page not found\n", get("/x"))
	cancel()
	must(t, <-served)
	if got := get("/status"); !strings.HasPrefix(got, "502 Bad Gateway asking the agent at unix:"+socket) || !strings.Contains(got, "\nhint: no agent listens there; ") {
		t.Errorf("without an agent: %s", got)
	}
	must(t, near.Close())
	same(t, "at the end of standard input", result{}, <-ended)
	same(t, "no socket", result{cli.ExitFailed, "", "node-cache: the agent has no unix socket\nhint: set admin.socket\n"}, command("relay", "--admin", "127.0.0.1:1"))
}
