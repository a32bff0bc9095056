// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/proctest"
)

// kubeletTimeout is timeoutSeconds of the probes in daemonset/.
const kubeletTimeout = 5 * time.Second

// TestReadyEntry probes agents and what else may listen at their socket. An agent's yes comes without Go's runtime, which
// GODEBUG=inittrace=1 has print lines; everything else as the command has it, before the kubelet gives up.
func TestReadyEntry(t *testing.T) {
	t.Parallel()
	if os.Getenv("E2E_RACE") != "" {
		t.Skip("the race detector's program has no such entry")
	}
	a := startAgent(t, settings{to: []string{"127.0.0.1:1"}, socket: proctest.SocketPath(t)})
	agent := "unix:" + a.settings.socket
	stuck := startAgent(t, settings{to: []string{"127.0.0.1:1"}, socket: proctest.SocketPath(t)})
	stuck.Signal(syscall.SIGSTOP)
	t.Cleanup(func() { stuck.Signal(syscall.SIGCONT) })
	sends := func(piece string, pause time.Duration) string { return "unix:" + pieceServer(t, piece, pause) }
	for name, tt := range map[string]struct {
		args []string
		env  string
		fast bool
		code int
		want string // of both outputs
	}{
		"ready":                   {nil, agent, true, 0, "^ready\n$"},
		"live":                    {[]string{"--live"}, agent, true, 0, "^live\n$"},
		"for programs":            {[]string{"-o", "json"}, agent, false, 0, `"ready": true`},
		"by a flag":               {[]string{"--admin", agent}, "", false, 0, "^ready\n$"},
		"not ready":               {nil, sends("HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\nthe cluster zone is not \x1b[2Jsynced\n", 0), false, 1, `^node-cache: not ready: the cluster zone is not \?\[2Jsynced\n$`},
		"no agent":                {nil, "unix:" + filepath.Join(t.TempDir(), "none"), false, 1, "^node-cache: asking the agent at unix:.*no such file or directory\nhint: no agent listens there; "},
		"a path that is too long": {nil, agent + strings.Repeat("/", 108), false, 1, "^node-cache: asking the agent at unix:.*invalid argument\n"},
		"a stuck agent":           {nil, "unix:" + stuck.settings.socket, false, 1, "^node-cache: asking the agent at .*Timeout exceeded"},
		"another server":          {nil, sends("HTTP/1.0 404 Not Found\r\n\r\n", 0), false, 1, "for /readyz: no such page\nhint: "},
		"closes at once":          {nil, sends("", 0), false, 1, "^node-cache: asking the agent at .*EOF"},
		"another protocol":        {nil, sends("220 ESMTP\r\n", 0), false, 1, "malformed HTTP"},
		"an endless line":         {nil, sends(strings.Repeat("HTTP/1.0 200 OK", 1<<20), 0), false, 1, "^node-cache: asking the agent"},
		"a byte at a time":        {nil, sends("H", 50*time.Millisecond), false, 1, "^node-cache: asking the agent at .*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), nodeCache, append([]string{"ready"}, tt.args...)...)
			cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1", "NODE_CACHE_ADMIN="+tt.env)
			var stdout, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			begin := time.Now()
			_ = cmd.Run()
			took := time.Since(begin)
			said := regexp.MustCompile(`(?m)^init .*\n`).ReplaceAllString(stderr.String(), "")
			fast := said == stderr.String()
			if got := stdout.String() + said; cmd.ProcessState.ExitCode() != tt.code || fast != tt.fast || !regexp.MustCompile(tt.want).MatchString(got) {
				t.Errorf("code %d, without the runtime %t: %.300q; want %d, %t: %s", cmd.ProcessState.ExitCode(), fast, got, tt.code, tt.fast, tt.want)
			}
			if took >= kubeletTimeout {
				t.Errorf("it took %s, and the kubelet waits %s", took, kubeletTimeout)
			}
		})
	}
}

// pieceServer sends each client a piece of a reply, or with a pause between them as many as it takes.
func pieceServer(t *testing.T, piece string, pause time.Duration) (path string) {
	t.Helper()
	path = proctest.SocketPath(t)
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	serve := func(c net.Conn) {
		defer func() { _ = c.Close() }()
		_, _ = c.Read(make([]byte, 4096))
		for {
			if _, err := c.Write([]byte(piece)); err != nil || pause == 0 {
				return
			}
			time.Sleep(pause)
		}
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go serve(c)
		}
	}()
	return path
}
