// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/nodecache/node-cache/pkg/admin"
	"github.com/nodecache/node-cache/pkg/cli"
	"github.com/nodecache/node-cache/pkg/config"
)

// readiness serves /readyz and /livez with the reason why it is neither; nil: it is both.
func readiness(t *testing.T, reason error) (addr string) {
	t.Helper()
	s, err := admin.New(admin.Config{
		Socket: "unused", Metrics: http.NotFoundHandler(), Ready: func() error { return reason }, Live: func() error { return reason }, Status: func(bool) any { return nil },
	})
	must(t, err)
	server := httptest.NewServer(s.Handler())
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestReady(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	silent := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })) // until the client gives up
	t.Cleanup(silent.Close)
	for _, tt := range []struct {
		name, admin string
		more        []string
		code        int
		want        string // of both outputs
	}{
		{"ready", readiness(t, nil), nil, cli.ExitOK, "^ready\n$"},
		{"not ready", readiness(t, errors.New("the cluster zone is not synced")), nil, cli.ExitFailed, "^node-cache: not ready: the cluster zone is not synced\n$"},
		{"live", readiness(t, nil), []string{"--live"}, cli.ExitOK, "^live\n$"},
		{"not live", readiness(t, errors.New("a reader hangs")), []string{"--live"}, cli.ExitFailed, "^node-cache: not live: a reader hangs\n$"},
		{"ready, for programs", readiness(t, nil), []string{"-o", "json"}, cli.ExitOK, `^{\n  "ready": true\n}\n$`},
		{"not live, for programs", readiness(t, errors.New("a reader hangs")), []string{"--live", "-o", "json"}, cli.ExitFailed, `^{\n  "live": false,\n  "reason": "a reader hangs"\n}\n$`},
		{"no agent", "unix:" + filepath.Join(t.TempDir(), "none"), nil, cli.ExitFailed, "^node-cache: asking the agent at unix:.*no such file or directory\nhint: no agent listens there; "},
		{"another server", other.Listener.Addr().String(), nil, cli.ExitFailed, "^node-cache: asking the agent at .* for /readyz: no such page\nhint: "},
		{"a silent one", silent.Listener.Addr().String(), []string{"--timeout", "200ms"}, cli.ExitFailed, "^node-cache: asking the agent at .*Timeout exceeded"},
	} {
		got := command(append([]string{"ready", "--admin", tt.admin}, tt.more...)...)
		if got.Code != tt.code || !regexp.MustCompile(tt.want).MatchString(got.Stdout+got.Stderr) || got.Stdout != "" && got.Stderr != "" {
			t.Errorf("%s: got %+v, want %d and %s", tt.name, got, tt.code, tt.want)
		}
	}
}

// TestAdminOfEnvironment has the environment name the agent, which a flag overrules.
func TestAdminOfEnvironment(t *testing.T) {
	addr, asked := fakeAgent(t)
	t.Setenv("NODE_CACHE_ADMIN", addr)
	same(t, "ready", result{cli.ExitOK, "ready\n", ""}, command("ready"))
	if got := command("cache", "top"); got.Code != cli.ExitOK || len(*asked) != 1 {
		t.Errorf("cache top: %+v", got)
	}
	if got := command("ready", "--admin", "127.0.0.1:1"); got.Code != cli.ExitFailed {
		t.Errorf("with the flag: %+v", got)
	}
}

// TestHostConfig has files of an agent in the order in which commands look for them.
func TestHostConfig(t *testing.T) {
	t.Parallel()
	socket := file(t, "")
	good := file(t, "listen: {addresses: [169.254.20.10], port: 53}\nadmin: {address: \"169.254.20.10:9253\", socket: "+socket+"}\n")
	bad, none := file(t, "listen: 7\n"), filepath.Join(t.TempDir(), "none")
	for name, tt := range map[string]struct {
		files []string
		want  string
	}{
		"the last good one": {[]string{good, bad}, "169.254.20.10 unix:" + socket},
		"a mounted one":     {[]string{none, good}, "169.254.20.10 unix:" + socket},
		"one with mistakes": {[]string{none, bad}, "127.0.0.1 127.0.0.1:9253"},
		"none":              {nil, "127.0.0.1 127.0.0.1:9253"},
	} {
		cfg := hostConfig(config.Agent, tt.files...)
		same(t, name, tt.want, cfg.Listen.Addresses[0].String()+" "+adminOf(&cfg))
	}
	must(t, os.Remove(socket))
	cfg := hostConfig(config.Agent, good)
	same(t, "without the socket", "169.254.20.10:9253", adminOf(&cfg))
}

// TestHostRole reads who the first process is, and its configuration with the defaults of its role.
func TestHostRole(t *testing.T) {
	t.Parallel()
	mounted := file(t, "listen: {port: 53}\n")
	for name, tt := range map[string]struct {
		cmdline string
		want    string
	}{
		"a resolver's pod":       {"/node-cache\x00resolver\x00--config\x00/etc/node-cache/node-cache.yaml\x00", ":: [::]:9253"},
		"an agent's pod":         {"/node-cache\x00agent\x00--config\x00resolver\x00", "127.0.0.1 127.0.0.1:9253"},
		"the node":               {"/sbin/init\x00resolver\x00", "127.0.0.1 127.0.0.1:9253"},
		"no arguments":           {"/node-cache\x00", "127.0.0.1 127.0.0.1:9253"},
		"a process that is gone": {"", "127.0.0.1 127.0.0.1:9253"},
	} {
		cfg := hostConfig(hostRole(file(t, tt.cmdline)), mounted)
		same(t, name, tt.want, cfg.Listen.Addresses[0].String()+" "+cfg.Admin.Address.String())
	}
	same(t, "no /proc", config.Agent, hostRole(filepath.Join(t.TempDir(), "none")))
}
