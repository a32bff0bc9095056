// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
)

// output is what a command of node-cache did.
type output struct {
	Code           int
	Stdout, Stderr string
}

// runCommand runs node-cache, or what wraps it, and waits for its end.
func runCommand(t *testing.T, command ...string) output {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatalf("%s: %v", command, err)
	}
	return output{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// cacheCommand runs a command of the cache against an agent's admin server.
func cacheCommand(t *testing.T, where string, args ...string) output {
	t.Helper()
	return runCommand(t, append([]string{nodeCache, "cache", "--admin", where}, args...)...)
}

// askNames asks an agent for addresses, each name as often as it is given. Each must be there.
func askNames(t *testing.T, a *agent, names ...string) {
	t.Helper()
	for _, name := range names {
		if r, _ := ask(t, a.addr, name); r.Rcode != dns.RcodeSuccess || len(r.Answer) == 0 {
			t.Fatalf("%s: %s", name, r)
		}
	}
}

// cacheRows are names and types of what an agent's cache holds, in the order of a page.
func cacheRows(t *testing.T, where string, args ...string) (rows []string) {
	t.Helper()
	got := cacheCommand(t, where, append(args, "--output", "json")...)
	if got.Code != 0 && got.Code != 3 || got.Stderr != "" {
		t.Fatalf("%v: %+v", args, got)
	}
	var view struct {
		Entries []struct {
			Name, Type, State string
			Hits              int
		}
	}
	if err := json.Unmarshal([]byte(got.Stdout), &view); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, got.Stdout)
	}
	for _, e := range view.Entries {
		rows = append(rows, fmt.Sprintf("%s %s %s %d", e.Name, e.Type, e.State, e.Hits))
	}
	return rows
}

// startSeen runs an agent with a socket and a scripted upstream, and gives both ways to its admin server.
func startSeen(t *testing.T) (a *agent, tcp, socket string) {
	t.Helper()
	up := startScripted(t, func(w dns.ResponseWriter, q *dns.Msg) {
		if !strings.HasPrefix(strings.ToLower(q.Question[0].Name), "gone.") {
			answerA(w, q)
			return
		}
		r := new(dns.Msg).SetReply(q)
		r.Rcode = dns.RcodeNameError
		soa, _ := dns.NewRR("seen.test. 60 IN SOA ns.seen.test. host.seen.test. 1 2 3 4 60")
		r.Ns = []dns.RR{soa}
		_ = w.WriteMsg(r)
	})
	folder, err := os.MkdirTemp("", "nc") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	path := filepath.Join(folder, "s")
	s := settings{address: "127.0.0.1", port: freePort(t), admin: freePort(t), to: []string{up.addr}}
	text := strings.Replace(s.yaml(), "admin: {", fmt.Sprintf("admin: {socket: %q, ", path), 1)
	a = launchFile(t, s, writeFile(t, filepath.Join(t.TempDir(), "config.yaml"), text))
	return a, strings.TrimPrefix(a.admin, "http://"), "unix:" + path
}

// TestCacheCommands looks into a running agent's cache and has it forget.
func TestCacheCommands(t *testing.T) {
	t.Parallel()
	a, tcp, socket := startSeen(t)
	nothing := output{3, "no entries\n", ""}
	if diff := cmp.Diff(nothing, cacheCommand(t, tcp, "get", "www.seen.test")); diff != "" {
		t.Errorf("before any query (-want +got):\n%s", diff)
	}
	askNames(t, a, "www.seen.test.", "www.seen.test.", "www.seen.test.", "www.seen.test.", "deep.seen.test.", "a.deep.seen.test.", "deep.seen.test.", "deep.seen.test.", "sleep.seen.test.")
	for range 2 {
		if r, _ := ask(t, a.addr, "gone.seen.test."); r.Rcode != dns.RcodeNameError {
			t.Fatalf("%s", r)
		}
	}

	want := regexp.MustCompile(`^www\.seen\.test\. A\n  fresh, NOERROR, age \ds, left (1m0s|5\ds), 3 hits, \d+ bytes\n  \S+\.  (60|5\d)  IN  A  192\.0\.2\.7\n$`)
	for _, where := range []string{tcp, socket} {
		if got := cacheCommand(t, where, "get", "WWW.seen.test"); got.Code != 0 || got.Stderr != "" || !want.MatchString(got.Stdout) {
			t.Errorf("%s: %+v", where, got)
		}
	}
	if got := cacheCommand(t, tcp, "get", "gone.seen.test", "AAAA"); got.Code != 0 || !strings.HasPrefix(got.Stdout, "gone.seen.test. *\n  fresh, NXDOMAIN, ") || !strings.Contains(got.Stdout, "SOA") {
		t.Errorf("a name that does not exist: %+v", got)
	}
	top := []string{
		"www.seen.test. A fresh 3", "deep.seen.test. A fresh 2", "gone.seen.test. * fresh 1",
		"a.deep.seen.test. A fresh 0", "sleep.seen.test. A fresh 0",
	}
	if diff := cmp.Diff(top, cacheRows(t, socket, "top")); diff != "" {
		t.Errorf("top (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(top[:2], cacheRows(t, tcp, "top", "-n", "2")); diff != "" {
		t.Errorf("top of two (-want +got):\n%s", diff)
	}
	if got := cacheRows(t, tcp, "top", "--by", "size"); len(got) != 5 || got[0] != top[2] {
		t.Errorf("by size %q, want the denial with its SOA record first", got)
	}

	for _, step := range []struct {
		args []string
		want string
		left []string
	}{
		{[]string{"flush", "none.seen.test"}, "no entry matched\n", top},
		{[]string{"flush", "www.seen.test"}, "removed: 1 entry\n", top[1:]},
		{[]string{"flush", "--zone", "deep.seen.test"}, "removed: 2 entries\n", []string{top[2], top[4]}},
		{[]string{"flush", "--all"}, "removed: 2 entries\n", nil},
		{[]string{"flush", "--all"}, "no entry matched\n", nil},
	} {
		if diff := cmp.Diff(output{0, step.want, ""}, cacheCommand(t, tcp, step.args...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", step.args, diff)
		}
		if diff := cmp.Diff(step.left, cacheRows(t, socket, "top")); diff != "" {
			t.Errorf("left after %v (-want +got):\n%s", step.args, diff)
		}
	}
	askNames(t, a, "www.seen.test.") // is asked for again
	if diff := cmp.Diff([]string{"www.seen.test. A fresh 0"}, cacheRows(t, tcp, "top")); diff != "" {
		t.Errorf("asked for again (-want +got):\n%s", diff)
	}
	if log := a.Stderr.String(); strings.Count(log, `"msg":"cache flushed"`) != 5 {
		t.Errorf("not every flush is in the log:\n%s", log)
	}
	a.stop(t)
	if _, err := os.Lstat(strings.TrimPrefix(socket, "unix:")); err == nil {
		t.Error("the socket is still there after the end")
	}
}

// TestSocketTaken starts a second agent that wants the socket of the first.
func TestSocketTaken(t *testing.T) {
	t.Parallel()
	_, _, socket := startSeen(t)
	path := strings.TrimPrefix(socket, "unix:")
	stderr := failToStart(t, agentCommand(t, fmt.Sprintf(
		"listen: {port: %d}\nforward: [{zone: \".\", to: [127.0.0.1:1]}]\nadmin: {address: 127.0.0.1:%d, socket: %q}\n", freePort(t), freePort(t), path)))
	checkOneProblem(t, stderr, "admin server: listening on unix socket "+path+": another process listens there", "hint: another agent uses this admin.socket: set a different path for each agent")
	if got := cacheCommand(t, socket, "top"); got.Code != 3 || got.Stderr != "" {
		t.Errorf("the first agent's cache: %+v", got)
	}
}

// TestFlushUnderLoad flushes all, and reads the cache, repeatedly while clients ask. No client misses a reply, and every
// reply is right.
func TestFlushUnderLoad(t *testing.T) {
	t.Parallel()
	a, tcp, socket := startSeen(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
	defer cancel()
	var asked atomic.Int64
	ended := make(chan error)
	const clients = 4
	for c := range clients {
		go func() {
			conn, err := dns.Dial("udp", a.addr)
			if err != nil {
				ended <- err
				return
			}
			defer func() { _ = conn.Close() }()
			for i := 0; ctx.Err() == nil; i++ {
				name := fmt.Sprintf("n%d-%d.seen.test.", c, i%50)
				r, _, err := (&dns.Client{Timeout: 5 * time.Second}).ExchangeWithConn(new(dns.Msg).SetQuestion(name, dns.TypeA), conn)
				switch {
				case err != nil:
					ended <- fmt.Errorf("%s: %w", name, err)
					return
				case r.Rcode != dns.RcodeSuccess || len(r.Answer) != 1:
					ended <- fmt.Errorf("%s: %s", name, r)
					return
				}
				asked.Add(1)
			}
			ended <- nil
		}()
	}
	flushes := 0
	for ctx.Err() == nil {
		for _, command := range [][]string{{"flush", "--all"}, {"flush", "--zone", "seen.test"}, {"flush", "n0-1.seen.test"}} {
			if got := cacheCommand(t, socket, command...); got.Code != 0 {
				t.Fatalf("%v: %+v", command, got)
			}
			flushes++
		}
		if got := cacheCommand(t, tcp, "top", "-n", "5"); got.Stderr != "" {
			t.Fatalf("top: %+v", got)
		}
	}
	for range clients {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Attr("asked", fmt.Sprint(asked.Load()))
	t.Attr("flushes", fmt.Sprint(flushes))
	if asked.Load() == 0 || flushes == 0 {
		t.Errorf("%d queries and %d flushes, want many", asked.Load(), flushes)
	}
}
