// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
)

// explained gives what an agent explains of its reply, with every time left out.
func explained(t *testing.T, command ...string) string {
	t.Helper()
	got := runCommand(t, command...)
	for line := range strings.Lines(got.Stdout) {
		if strings.HasPrefix(line, "; explained: ") || strings.HasPrefix(line, "; not explained: ") {
			line = strings.TrimSpace(strings.TrimPrefix(line, "; explained: "))
			return regexp.MustCompile(`\b(age|left|took)=\S+`).ReplaceAllString(line, "$1")
		}
	}
	t.Errorf("%v explains nothing: %+v", command, got)
	return ""
}

// TestCacheFromPod asks as a pod does, from another network namespace: it sees nothing of the cache, changes nothing, and
// gets no explanation of its replies.
func TestCacheFromPod(t *testing.T) {
	nsenter := proctest.FindProgram(t, "nsenter", "util-linux")
	if !proctest.InNamespace(t, nodeCache) {
		return
	}
	pod := proctest.Start(t, "pod", exec.Command("unshare", "-n", "sleep", "300"))
	inPod := []string{nsenter, "-t", fmt.Sprint(pod.PID()), "-n"}
	outside, err := os.Readlink("/proc/self/ns/net")
	assert.NoError(t, err)
	proctest.Eventually(t, time.Minute, "the pod has a network of its own", func() bool {
		inside, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pod.PID()))
		return err == nil && inside != outside
	})
	for _, command := range [][]string{
		{"ip", "link", "add", "node0", "type", "veth", "peer", "name", "pod0", "netns", fmt.Sprint(pod.PID())},
		{"ip", "address", "add", "10.77.0.1/24", "dev", "node0"},
		{"ip", "link", "set", "node0", "up"},
		append(inPod, "ip", "address", "add", "10.77.0.2/24", "dev", "pod0"),
		append(inPod, "ip", "link", "set", "pod0", "up"),
	} {
		if got := runCommand(t, command...); got.Code != 0 {
			t.Fatalf("%v: %+v", command, got)
		}
	}
	up := startScripted(t, answerA)
	s := settings{address: "10.77.0.1", port: 53, admin: 9253, socket: proctest.SocketPath(t), to: []string{up}}
	text := strings.Replace(s.yaml(), "127.0.0.1:9253", "'[::]:9253'", 1)
	a := launchFile(t, s, writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), text))
	asPod := func(args ...string) []string { return append(append([]string{}, inPod...), args...) }
	ask := []string{nodeCache, "query", "--explain", "--server", "10.77.0.1", "www.test"}
	query := func(command []string) string {
		t.Helper()
		return explained(t, command...)
	}
	const notExplained = "; not explained: only an agent does that, and only to clients on its own machine"
	for _, tt := range []struct {
		name    string
		command []string
		want    string
	}{
		{"the pod, first", asPod(ask...), notExplained},
		{"the node", ask, "source=cache state=fresh age left route=."},
		{"the pod, of what is held", asPod(ask...), notExplained},
	} {
		assert.Equal(t, tt.name, tt.want, query(tt.command))
	}
	for _, tt := range []struct{ command, hint string }{
		{"get www.test", "open what `node-cache page` prints, or use the unix socket admin.socket"},
		{"top", "open what `node-cache page` prints, or use the unix socket admin.socket"},
		{"flush --all", "use --admin unix:PATH, or curl --unix-socket PATH, with the path of admin.socket"},
	} {
		command := append([]string{nodeCache, "cache", "--admin", "10.77.0.1:9253"}, strings.Fields(tt.command)...)
		for where, command := range map[string][]string{"the pod": asPod(command...), "the node": command} {
			if got := runCommand(t, command...); got.Code != 1 || got.Stdout != "" || !strings.HasSuffix(got.Stderr, "\nhint: "+tt.hint+"\n") {
				t.Errorf("%s: %s: %+v", where, tt.command, got)
			}
		}
		command[3] = "unix:" + s.socket
		if got := runCommand(t, command...); got.Code != 0 {
			t.Errorf("over the socket: %s: %+v", tt.command, got)
		}
	}
	if _, err := a.Page("/readyz"); err != nil {
		t.Error(err)
	}
}
