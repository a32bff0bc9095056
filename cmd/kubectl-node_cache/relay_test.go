// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/pkg/admin/relay"
	"github.com/nodecache/node-cache/pkg/cli"
)

// relays returns an API server with nodes whose agents have these pages. ended gets the name of each pod whose relay has ended.
func relays(pods []corev1.Pod, pages http.HandlerFunc) (s *apiServer, ended chan string) {
	ended = make(chan string, 2*atOnce)
	return &apiServer{
		daemonSet: daemonSet(int32(len(pods))), pods: pods,
		relay: func(pod string, stdin io.Reader, stdout, stderr, _ io.Writer) int {
			defer func() { ended <- pod }()
			err := relay.Serve(context.Background(), stdin, stdout, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Host = pod
				pages(w, r)
			}))
			if err != nil {
				_, _ = fmt.Fprintln(stderr, err)
				return 1
			}
			return 0
		},
	}, ended
}

// lines are the lines that a command prints.
type lines chan string

func (l lines) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		l <- strings.TrimSuffix(line, "\n")
	}
	return len(text), nil
}

// begin runs a command until stop is called, as Ctrl-C does. stop returns the error.
func begin(t *testing.T, flag string, command func(*cluster) *cobra.Command, args ...string) (stdout, stderr lines, stop func() error) {
	t.Helper()
	_, file, _ := strings.Cut(flag, "=")
	cmd := command(&cluster{kubeconfig: file, namespace: "kube-system", timeout: nodeTimeout})
	stdout, stderr = make(lines, 100), make(lines, 100)
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	return stdout, stderr, func() error {
		cancel()
		return <-done
	}
}

const (
	watchedQuery = `{"time":"2026-01-02T03:04:05.678Z","name":"a.test.` + "\u009b" + `2J","type":"A","rcode":"NXDOMAIN","source":"cache","took_seconds":0.002,"client":"10.1.2.3","denied":"no_service"}` + "\n"
	watchedText  = "03:04:05.678  NXDOMAIN cache          2ms  A     a.test.?2J  10.1.2.3  denied=no_service"
)

// TestWatch shows the lines of two nodes until Ctrl-C. Then no relay is left, and the agents' streams have ended.
func TestWatch(t *testing.T) {
	t.Parallel()
	pods := []corev1.Pod{agentPod("a", "node1", 1), agentPod("b", "node2", 1), agentPod("c", "node3", 1)}
	watched := make(chan string, 2*len(pods))
	s, ended := relays(pods, func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "URL", "/watch?name=a.test&namespace=shop", r.URL.String())
		_, _ = io.WriteString(w, watchedQuery+`{"dropped":7}`+"\n")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		watched <- r.Host
	})
	flag := s.start(t)
	for _, tt := range []struct {
		name string
		args []string
		want []string
	}{
		{"text", nil, []string{"node1  (7 more)", "node1  " + watchedText, "node3  (7 more)", "node3  " + watchedText}},
		{"as JSON", []string{"-o", "json"}, []string{
			`{"node":"node1","query":` + strings.Replace(watchedQuery[:len(watchedQuery)-1], "\u009b", `\u009b`, 1) + "}", `{"node":"node1","query":{"dropped":7}}`,
			`{"node":"node3","query":` + strings.Replace(watchedQuery[:len(watchedQuery)-1], "\u009b", `\u009b`, 1) + "}", `{"node":"node3","query":{"dropped":7}}`,
		}},
	} {
		stdout, _, stop := begin(t, flag, watchCommand, append(tt.args, "node3", "node1", "--name", "a.test", "--pod-namespace", "shop")...)
		got := []string{<-stdout, <-stdout, <-stdout, <-stdout}
		slices.Sort(got)
		slices.Sort(tt.want)
		assert.Same(t, tt.name, tt.want, got)
		assert.NoError(t, stop())
		left := []string{<-ended, <-ended, <-watched, <-watched}
		slices.Sort(left)
		assert.Same(t, tt.name+": ended", []string{"a", "a", "c", "c"}, left)
	}
}

// TestWatchEnds has agents that end the stream, refuse it, lack the relay, or send what is none.
func TestWatchEnds(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		pages http.HandlerFunc
		run   func(pod string, stdin io.Reader, stdout, stderr, status io.Writer) int // instead of a relay
		want  string
	}{
		{"the stream ends", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "{}\n") }, nil, "the connection to pod a ended: EOF"},
		{"refused", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "no pods\x1b[2J\nhint: set pods.identity\x1b[2J", http.StatusBadRequest)
		}, nil, "no pods?[2J\nhint: set pods.identity?[2J"},
		{"a refusal without an end", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			endless(w, "no\n")
		}, nil, strings.Repeat("no?", maxCell/3) + "no …"},
		{"a line without an end", func(w http.ResponseWriter, _ *http.Request) { endless(w, "x") }, nil, "the connection to pod a ended: bufio.Scanner: token too long"},
		{"no JSON", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x\n") }, nil, "reading a query: invalid character 'x' looking for beginning of value"},
		{"an agent without the relay", nil, func(_ string, _ io.Reader, _, stderr, _ io.Writer) int {
			_, _ = io.WriteString(stderr, "node-cache: unknown command \"relay\"\nhint: \x1b[2Jhelp\n")
			return 2
		}, "unknown command \"relay\"\nhint: ?[2Jhelp"},
		{"a killed relay", nil, func(_ string, stdin io.Reader, _, _, _ io.Writer) int {
			_, _ = io.ReadFull(stdin, make([]byte, 24)) // the begin of HTTP/2
			return 137
		}, "exit code 137"},
		{"garbage", nil, func(_ string, _ io.Reader, stdout, _, _ io.Writer) int {
			endless(stdout, "\x1b[2J")
			return 0
		}, "the connection to pod a ended: "},
		{"errors without an end", nil, func(_ string, _ io.Reader, _, stderr, _ io.Writer) int {
			for range 160 {
				_, _ = io.WriteString(stderr, strings.Repeat("e", 64<<10))
			}
			return 1
		}, strings.Repeat("e", maxCell) + " …"},
		{"a long message", nil, func(_ string, _ io.Reader, stdout, _, _ io.Writer) int {
			_, _ = io.WriteString(stdout, strings.Repeat("x", maxMessage))
			return 0
		}, "the connection to pod a ended: "},
		{"a status that is none", nil, func(_ string, _ io.Reader, _, _, status io.Writer) int {
			_, _ = io.WriteString(status, strings.Repeat("[", 64<<10))
			return 0
		}, "reading the status: JSON with more than 16 levels"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s, _ := relays([]corev1.Pod{agentPod("a", "node1", 1)}, tt.pages)
			if tt.run != nil {
				s.relay = tt.run
			}
			got := command("watch", s.start(t))
			if got.Code != cli.ExitFailed || !strings.HasPrefix(got.Stderr, "node-cache: node node1: "+tt.want) || strings.ContainsRune(got.Stdout+got.Stderr, '\x1b') {
				t.Errorf("got %+v, want %s", got, tt.want)
			}
		})
	}
}

// endless writes until an error.
func endless(out io.Writer, text string) {
	for chunk := strings.Repeat(text, 1000); ; {
		if _, err := io.WriteString(out, chunk); err != nil {
			return
		}
	}
}

// TestWatchUsage has nodes that have no agent, and more than can be watched.
func TestWatchUsage(t *testing.T) {
	t.Parallel()
	var pods []corev1.Pod
	for i := range atOnce + 1 {
		pods = append(pods, agentPod(fmt.Sprint("p", i), fmt.Sprint("node", i), 1))
	}
	s, _ := relays(pods, http.NotFound)
	flag := s.start(t)
	assert.Same(t, "too many", result{1, "", "node-cache: 33 nodes, and at most 32 can be watched at once\nhint: name some of them\n"}, command("watch", flag))
	assert.Same(t, "no agent", result{1, "", "node-cache: no agent on a node x\nhint: `kubectl node-cache status` lists the nodes\n"}, command("watch", flag, "node1", "x"))
}

// TestPage requests the page as its browser, another user of the machine, and a web site in the browser do.
func TestPage(t *testing.T) {
	t.Parallel()
	s, ended := relays([]corev1.Pod{agentPod("a", "node1", 1)}, func(w http.ResponseWriter, r *http.Request) {
		for _, from := range []string{"Cookie", "Authorization", "Origin", "X-Forwarded-For"} {
			assert.Equal(t, from, "", r.Header.Get(from))
		}
		h := w.Header()
		h.Set("Set-Cookie", "a=b")
		h.Set("Clear-Site-Data", "*")
		h.Set("Access-Control-Allow-Origin", "*")
		h.Set("Content-Security-Policy", "default-src 'none'")
		h.Set("Content-Type", "text/html; charset=utf-8")
		_, _ = fmt.Fprint(w, r.Method, " ", r.URL)
	})
	stdout, stderr, stop := begin(t, s.start(t), pageCommand, "node1", "--no-browser")
	at, _ := <-stdout, <-stderr
	if !strings.HasPrefix(at, "http://127.0.0.1:") {
		t.Fatalf("URL %s", at)
	}
	root := at[:strings.LastIndex(strings.TrimSuffix(at, "/"), "/")+1]
	for _, tt := range []struct {
		name, method, url, host string
		code                    int
		body                    string
	}{
		{"the page", "GET", at, "", 200, "GET /"},
		{"its stream", "GET", at + "watch?token=x&name=a%2Fb", "", 200, "GET /watch?token=x&name=a%2Fb"},
		{"without the secret", "GET", root, "", 403, "open the URL that `kubectl node-cache page` prints\n"},
		{"with a part of it", "GET", at[:len(at)-2], "", 403, "open the URL that `kubectl node-cache page` prints\n"},
		{"with another", "GET", root + strings.Repeat("A", 26) + "/", "", 403, "open the URL that `kubectl node-cache page` prints\n"},
		{"DNS rebinding", "GET", at, "evil.example", 403, "open the URL that `kubectl node-cache page` prints\n"},
		{"a change", "POST", at + "cache/flush?all=1", "", 405, "only GET is relayed\n"},
	} {
		r, err := http.NewRequestWithContext(t.Context(), tt.method, tt.url, nil)
		assert.NoError(t, err)
		r.Host = tt.host
		for _, name := range []string{"Cookie", "Authorization", "Origin"} {
			r.Header.Set(name, "secret")
		}
		reply, err := http.DefaultTransport.RoundTrip(r)
		assert.NoError(t, err)
		body, err := io.ReadAll(reply.Body)
		assert.NoError(t, errors.Join(err, reply.Body.Close()))
		assert.Equal(t, tt.name+": status", tt.code, reply.StatusCode)
		assert.Equal(t, tt.name+": body", tt.body, string(body))
		assert.Equal(t, tt.name+": cookie", "", reply.Header.Get("Set-Cookie")+reply.Header.Get("Clear-Site-Data"))
		if tt.code == http.StatusOK {
			assert.Same(t, tt.name+": policy", []string{"default-src 'none'", "sandbox allow-scripts allow-forms; default-src 'self' data: 'unsafe-inline'; form-action 'none'; frame-ancestors 'none'"}, reply.Header["Content-Security-Policy"])
			assert.Same(t, tt.name+": who may read it", []string{"null"}, reply.Header["Access-Control-Allow-Origin"])
		}
	}
	assert.NoError(t, stop())
	assert.Equal(t, "ended", "a", <-ended)
	if _, err := http.Get(at); !errors.Is(err, syscall.ECONNREFUSED) { //nolint:bodyclose // it fails
		t.Errorf("after Ctrl-C: %v", err)
	}
}

// TestPageEnds ends with the agent, and says so.
func TestPageEnds(t *testing.T) {
	t.Parallel()
	s, _ := relays([]corev1.Pod{agentPod("a", "node1", 1)}, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "x") })
	serve, kill := s.relay, make(chan struct{})
	s.relay = func(pod string, stdin io.Reader, stdout, stderr, status io.Writer) int {
		go serve(pod, stdin, stdout, stderr, status)
		<-kill
		return 137
	}
	stdout := make(lines, 2)
	var stderr strings.Builder
	go func() {
		<-stdout
		close(kill)
	}()
	code := cli.Run(rootCommand(), []string{"page", "node1", "--no-browser", s.start(t)}, stdout, &stderr, cli.Report)
	assert.Same(t, "result", result{cli.ExitFailed, "", "Ctrl-C ends it.\nnode-cache: node node1: exit code 137\nhint: run the command again once `kubectl node-cache status` shows the node as ready\n"},
		result{code, "", stderr.String()})
}

// TestOpenBrowser has the desktop open a file that only this user can read.
func TestOpenBrowser(t *testing.T) {
	folder := t.TempDir()
	fifo := filepath.Join(folder, "opened")
	assert.NoError(t, syscall.Mkfifo(fifo, 0o600))
	assert.NoError(t, os.WriteFile(filepath.Join(folder, "xdg-open"), []byte("#!/bin/sh\nexec >"+fifo+"\nstat -c %a \"${1%/*}\" \"$1\"\ncat \"$1\"\n"), 0o700)) //nolint:gosec // a program
	t.Setenv("PATH", folder+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", folder)
	t.Setenv("DISPLAY", ":0")
	remove, err := openBrowser("http://127.0.0.1:1/secret/")
	assert.NoError(t, err)
	opened, err := os.ReadFile(fifo)
	assert.NoError(t, err)
	assert.Equal(t, "opened", "700\n600\n"+`<!doctype html><meta http-equiv="refresh" content="0; url=http://127.0.0.1:1/secret/">`, string(opened))
	remove()
	left, err := filepath.Glob(filepath.Join(folder, "kubectl-*"))
	assert.NoError(t, err)
	assert.Equal(t, "files left", 0, len(left))

	t.Setenv("PATH", folder+"/none")
	remove, err = openBrowser("http://127.0.0.1:1/secret/")
	assert.Equal(t, "without a program", `"xdg-open": executable file not found in $PATH`, fmt.Sprint(err))
	remove()
	t.Setenv("DISPLAY", "")
	t.Setenv("WAYLAND_DISPLAY", "")
	_, err = openBrowser("http://127.0.0.1:1/secret/")
	assert.Equal(t, "without a display", "there is no display", fmt.Sprint(err))
}
