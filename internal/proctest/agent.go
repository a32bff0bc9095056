// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// An Agent is a running node-cache.
type Agent struct {
	*Process
	Web    http.Client // of its admin server
	Killed bool        // by the test, so that it need not end cleanly
	admin  netip.AddrPort
}

// StartAgent runs node-cache until the test ends, when it must still run and then end cleanly. It returns once its admin server,
// which dial reaches if that is not nil, gives a page.
func StartAgent(t *testing.T, cmd *exec.Cmd, admin netip.AddrPort, page string, dial func(ctx context.Context, network, addr string) (net.Conn, error)) *Agent {
	t.Helper()
	a := &Agent{admin: admin, Web: http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}}
	a.Process = Start(t, "node-cache", cmd)
	t.Cleanup(func() { a.Stop(t) })
	Eventually(t, time.Minute, "node-cache gives "+page, func() bool {
		if a.Ended() {
			t.Fatalf("node-cache ended: %v", a.Err())
		}
		_, err := a.Page(page)
		return err == nil
	})
	return a
}

// Stop asks node-cache to end and expects a clean exit. Stopping twice is harmless.
func (a *Agent) Stop(t *testing.T) {
	t.Helper()
	if !a.Ended() {
		a.Signal(syscall.SIGTERM)
	}
	if err := a.Wait(t, time.Minute); err != nil && !a.Killed {
		t.Errorf("%s ended with %v, want a clean exit", a.Name, err)
	}
	for _, bad := range []string{"DATA RACE", "panic: ", "panicked", "goroutine 1 ["} {
		if strings.Contains(a.Stderr.String(), bad) {
			t.Errorf("%s wrote %q", a.Name, bad)
		}
	}
}

// Get fetches a page of the admin server with any status.
func (a *Agent) Get(path string) (status int, body string, err error) {
	reply, err := a.Web.Get("http://" + a.admin.String() + path) //nolint:noctx // the client has a timeout
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	return reply.StatusCode, string(text), err
}

// Page fetches a page. Any status but 200 is an error.
func (a *Agent) Page(path string) (string, error) {
	status, body, err := a.Get(path)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: status %d: %s", path, status, body)
	}
	return body, err
}

// Usage is what node-cache has used so far.
func (a *Agent) Usage(t *testing.T) Usage {
	t.Helper()
	used, err := UsageOf(a.PID())
	if err != nil {
		t.Fatal(err)
	}
	return used
}

// Status reads the page /status.
func (a *Agent) Status(t *testing.T, into any) {
	t.Helper()
	body, err := a.Page("/status")
	if err == nil {
		err = json.Unmarshal([]byte(body), into)
	}
	if err != nil {
		t.Fatalf("reading /status: %v\n%s", err, body)
	}
}
