// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/nodecache/node-cache/pkg/agent"
	"github.com/nodecache/node-cache/pkg/config"
)

// maxPage bounds what is read of a page, in bytes: a thousand entries of the longest
// names there are have less.
const maxPage = 16 << 20

// pageTimeout is how long a page may take. The agent gives itself 30 seconds.
const pageTimeout = 40 * time.Second

// adminVariable is the environment variable that names the admin server where no flag
// does.
const adminVariable = "NODE_CACHE_ADMIN"

// adminUsage explains the flag --admin.
const adminUsage = "the agent's admin server, `IP:PORT` or unix:/path; " + adminVariable + " changes the default"

// defaultAdmin is the admin server without the flag --admin.
func defaultAdmin() string {
	return cmp.Or(os.Getenv(adminVariable), config.Default(config.Agent).Admin.Address.String())
}

// An adminClient asks an agent's admin server for pages.
type adminClient struct {
	where string // as it was given
	base  string // of URLs
	http  http.Client
}

// newAdminClient makes a client of the server at where: IP:PORT, or unix: and a path.
func newAdminClient(where string) (*adminClient, error) {
	c := &adminClient{where: where, http: http.Client{Timeout: pageTimeout}}
	// No proxy: an agent gives its cache to clients on its own machine only.
	transport := &http.Transport{DisableKeepAlives: true}
	c.http.Transport = transport
	if path, ok := strings.CutPrefix(where, "unix:"); ok {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("--admin %q: the path of the socket must begin with /", where)
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", path)
		}
		c.base = "http://localhost"
		return c, nil
	}
	addr, err := netip.ParseAddrPort(where)
	if err != nil || addr.Port() == 0 {
		return nil, fmt.Errorf("--admin %q: not IP:PORT, nor unix: and a path", where)
	}
	c.base = "http://" + addr.String()
	return c, nil
}

// do sends a request without a body and gives the page. What the server refuses is an
// error with the server's hint.
func (c *adminClient) do(ctx context.Context, method, path string, parameters url.Values) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, method, c.base+path+"?"+parameters.Encode(), nil)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Accept", "application/json")
	reply, err := c.http.Do(r)
	if err != nil {
		return nil, c.unanswered(err)
	}
	defer func() { _ = reply.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxPage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading %s of the agent at %s: %w", path, c.where, err)
	case len(body) > maxPage:
		return nil, fmt.Errorf("reading %s of the agent at %s: longer than %d bytes", path, c.where, maxPage)
	case reply.StatusCode != http.StatusOK:
		return nil, c.refused(path, reply, string(body))
	}
	return body, nil
}

// unready is why the agent is not ready, empty if it is. An error is that nobody said
// so.
func (c *adminClient) unready(ctx context.Context) (why string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+"/readyz", nil)
	if err != nil {
		return "", err
	}
	reply, err := c.http.Do(r)
	if err != nil {
		return "", c.unanswered(err)
	}
	defer func() { _ = reply.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(reply.Body, maxPage))
	switch {
	case err != nil:
		return "", fmt.Errorf("reading /readyz of the agent at %s: %w", c.where, err)
	case reply.StatusCode == http.StatusOK:
		return "", nil
	case reply.StatusCode != http.StatusServiceUnavailable:
		return "", c.refused("/readyz", reply, string(body))
	}
	return cmp.Or(plain(bytes.TrimSpace(body)), "no reason given"), nil
}

// refused says why the server gave no page.
func (c *adminClient) refused(path string, reply *http.Response, text string) error {
	why, hint, _ := strings.Cut(strings.TrimSpace(text), "\nhint: ")
	if reply.StatusCode == http.StatusNotFound {
		why, hint = "no such page", "it is not an agent's admin server, or an agent older than this program"
	}
	return &agent.HintError{Err: fmt.Errorf("asking the agent at %s for %s: %s", c.where, path, why), Hint: hint}
}

// unanswered says why there is no reply, and what to look at.
func (c *adminClient) unanswered(err error) error {
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		err = wrapped.Err // without the URL, which the text below has
	}
	hint := "look at the agent's log"
	var timeout interface{ Timeout() bool }
	switch {
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		hint = "no agent serves that; --admin or " + adminVariable + " names its admin.address, or unix: and its admin.socket"
	case errors.Is(err, fs.ErrPermission):
		hint = "the socket is for the user that the agent runs as"
	case errors.As(err, &timeout) && timeout.Timeout():
		hint = "the address may be no agent's, or a firewall drops the packets"
	}
	return &agent.HintError{Err: fmt.Errorf("asking the agent at %s: %w", c.where, err), Hint: hint}
}
