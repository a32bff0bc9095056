// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// oneProblem is what a start that cannot be says on stderr, and all that it says.
var oneProblem = regexp.MustCompile(`^node-cache: [^\n]+: [^\n]+\nhint: [^\n]+\n$`)

// failToStart runs a command that must soon end with exit code 1, and returns its stderr.
func failToStart(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	p := proctest.Start(t, "node-cache", cmd)
	var exit *exec.ExitError
	if err := p.Wait(t, time.Minute); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("ended with %v, want exit code 1", err)
	}
	return p.Stderr.String()
}

// agentCommand is the agent with a configuration file.
func agentCommand(t *testing.T, config string) *exec.Cmd {
	t.Helper()
	return exec.Command(nodeCache, "agent", "--config", writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), config))
}

func TestBadStart(t *testing.T) {
	t.Parallel()
	udp, err := net.ListenPacket("udp4", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = udp.Close() }) // after the subtests, which a defer would not wait for
	tcp, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NoError(t, err)
	t.Cleanup(func() { _ = tcp.Close() })
	_, udpPort := splitPort(t, udp.LocalAddr().String())
	_, tcpPort := splitPort(t, tcp.Addr().String())
	own := freePort(t)
	tests := []struct {
		name string
		s    settings
		want []string // parts of stderr
	}{
		{
			name: "UDP port taken", want: []string{fmt.Sprintf("127.0.0.1:%d", udpPort), "address already in use"},
			s: settings{address: "127.0.0.1", port: udpPort, admin: freePort(t), to: []string{"127.0.0.9"}},
		},
		{
			name: "TCP port taken", want: []string{fmt.Sprintf("127.0.0.1:%d", tcpPort), "address already in use"},
			s: settings{address: "127.0.0.1", port: tcpPort, admin: freePort(t), to: []string{"127.0.0.9"}},
		},
		{
			name: "admin port taken", want: []string{fmt.Sprintf("127.0.0.1:%d", tcpPort), "address already in use"},
			s: settings{address: "127.0.0.1", port: freePort(t), admin: tcpPort, to: []string{"127.0.0.9"}},
		},
		{
			name: "an address of another machine", want: []string{"192.0.2.1", "cannot assign requested address"},
			s: settings{address: "192.0.2.1", port: freePort(t), admin: freePort(t), to: []string{"127.0.0.9"}},
		},
		{
			name: "its own address as the only upstream", want: []string{fmt.Sprintf("127.0.0.1:%d", own)},
			s: settings{address: "127.0.0.1", port: own, admin: freePort(t), to: []string{fmt.Sprintf("127.0.0.1:%d", own)}},
		},
		{
			name: "a resolv.conf that does not exist", want: []string{"/nonexistent/resolv.conf", "no such file"},
			s: settings{address: "127.0.0.1", port: freePort(t), admin: freePort(t), to: []string{"/nonexistent/resolv.conf"}},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			checkOneProblem(t, failToStart(t, agentCommand(t, tt.s.yaml())), tt.want...)
		})
	}
}

// checkOneProblem expects one problem with its hint, and the given parts in it.
func checkOneProblem(t *testing.T, stderr string, want ...string) {
	t.Helper()
	if !oneProblem.MatchString(stderr) {
		t.Errorf("stderr is\n%s\nwant one line `node-cache: what: why` and one line `hint: …`", stderr)
	}
	for _, part := range want {
		if !strings.Contains(stderr, part) {
			t.Errorf("stderr lacks %q:\n%s", part, stderr)
		}
	}
}

func TestBadStartUnreadableFile(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "absent.yaml")
	for _, command := range [][]string{{"agent", "--config", missing}, {"check", missing}} {
		checkOneProblem(t, failToStart(t, exec.Command(nodeCache, command...)), missing, "no such file")
	}
	folder := t.TempDir()
	checkOneProblem(t, failToStart(t, exec.Command(nodeCache, "agent", "--config", folder)), folder, "is a directory")
}

// TestBadStartWithoutCapabilities binds a low port as a user who may not, in a network of its own: some machines let
// every user bind every port of the first one.
func TestBadStartWithoutCapabilities(t *testing.T) {
	t.Parallel()
	s := settings{address: "0.0.0.0", port: 53, admin: freePort(t), to: []string{"192.0.2.1"}}
	cmd := agentCommand(t, s.yaml())
	if os.Geteuid() == 0 {
		const unprivileged = 65534
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Credential: &syscall.Credential{Uid: unprivileged, Gid: unprivileged},
			Cloneflags: syscall.CLONE_NEWNET,
		}
		for dir := filepath.Dir(cmd.Args[3]); strings.HasPrefix(dir, os.TempDir()+"/"); dir = filepath.Dir(dir) {
			assert.NoError(t, os.Chmod(dir, 0o755))
		}
	} else if free, err := os.ReadFile("/proc/sys/net/ipv4/ip_unprivileged_port_start"); err == nil && strings.TrimSpace(string(free)) == "0" {
		t.Skip("every user of this machine may bind port 53, and only root can make another network: run as root")
	}
	checkOneProblem(t, failToStart(t, cmd), "0.0.0.0:53", "permission denied")
}

// TestFiveMistakes has one mistake of each kind. agent and check name all of them, with a hint each.
func TestFiveMistakes(t *testing.T) {
	t.Parallel()
	const config = `listen: {addresses: [127.0.0.1], port: 70000}
forward: [{zone: ".", to: ["10.0.0"]}]
cache: {sise: 64Mi, minTTL: 5}
log: {level: loud}
`
	file := writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), config)
	for _, command := range [][]string{{"agent", "--config", file}, {"check", file}} {
		stderr := failToStart(t, exec.Command(nodeCache, command...))
		for _, path := range []string{"listen.port", "forward[0].to[0]", "cache.sise", "cache.minTTL", "log.level"} {
			if !strings.Contains(stderr, path+": ") {
				t.Errorf("%s: stderr lacks %s:\n%s", command[0], path, stderr)
			}
		}
		if !strings.Contains(stderr, file) || !strings.HasPrefix(stderr, "node-cache: ") || strings.Count(stderr, "hint: ") == 0 {
			t.Errorf("%s: stderr names no file or no hint:\n%s", command[0], stderr)
		}
	}
}
