// SPDX-License-Identifier: Apache-2.0

package blocklist_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodecache/node-cache/internal/assert"
	"github.com/nodecache/node-cache/internal/proctest"
	"github.com/nodecache/node-cache/pkg/names/blocklist"
	"github.com/nodecache/node-cache/pkg/wire"
)

// write replaces a file in one step: one that is written in place may be read while it is empty.
func write(tb testing.TB, path, text string) {
	tb.Helper()
	assert.NoError(tb, os.WriteFile(path+".new", []byte(text), 0o600))
	assert.NoError(tb, os.Rename(path+".new", path))
}

// blocks reports whether the lists block a name.
func blocks(tb testing.TB, l *blocklist.Lists, name string) bool {
	tb.Helper()
	n, err := wire.AppendName(nil, name)
	assert.NoError(tb, err)
	rule := l.Find(n)
	return rule.Blocks()
}

func newLists(tb testing.TB, cfg blocklist.Config) *blocklist.Lists {
	tb.Helper()
	l, err := blocklist.New(cfg)
	assert.NoError(tb, err)
	return l
}

// TestFollow changes, removes, breaks and repairs a list while it is watched.
func TestFollow(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	ads, more := filepath.Join(folder, "ads.txt"), filepath.Join(folder, "more ü.txt")
	write(t, ads, "a.example\nb..example\nc.example CNAME rpz-drop.\n+\n")
	changed := make(chan struct{}, 100)
	var log bytes.Buffer
	l := newLists(t, blocklist.Config{
		Files: []string{ads, more}, Changed: func() { changed <- struct{}{} }, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	})
	st := l.Stats(time.Now().Add(time.Hour))
	f := st.Files[0]
	if st.Names != 1 || f.Names != 1 || f.Skipped != 2 || f.Unsupported != 1 || f.FirstSkipped != 2 || f.Bytes != st.Bytes || f.Age < 3590 || f.LastError != "" || f.Reads != 1 {
		t.Errorf("%+v", st)
	}
	if f := st.Files[1]; !strings.Contains(f.LastError, "no such file") || f.Age != 0 {
		t.Errorf("%+v", f)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	defer func() {
		cancel()
		assert.NoError(t, <-ended)
		for _, want := range []string{"block list unreadable", "block list lines skipped", "invalid=2 unsupported=1 first=2", "block list loaded"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q: %s", want, log.String())
			}
		}
	}()
	write(t, more, "0.0.0.0 m.example\n")
	<-changed
	if !blocks(t, l, "m.example.") || !blocks(t, l, "a.example.") {
		t.Error("the new list is not in use")
	}
	write(t, ads, "d.example\n")
	<-changed
	if blocks(t, l, "a.example.") || !blocks(t, l, "d.example.") || !blocks(t, l, "m.example.") {
		t.Error("the changed list is not in use")
	}
	lastError := func() string { return l.Stats(time.Now()).Files[0].LastError }
	assert.NoError(t, os.Remove(ads))
	proctest.Eventually(t, time.Minute, "reported missing", func() bool { return strings.Contains(lastError(), "no such file") })
	write(t, ads, "<html>\n")
	proctest.Eventually(t, time.Minute, "reported unusable", func() bool { return strings.Contains(lastError(), "no line can be used") })
	if !blocks(t, l, "d.example.") {
		t.Error("unusable content replaced the list")
	}
	if got := newLists(t, blocklist.Config{Files: []string{ads}, Predecessor: l}); !blocks(t, got, "d.example.") || !strings.Contains(got.Stats(time.Now()).Files[0].LastError, "no line can be used") {
		t.Error("the successor lost the list or the error")
	}
	write(t, ads, "")
	<-changed
	if blocks(t, l, "d.example.") || lastError() != "" {
		t.Errorf("the empty list is not in use: %s", lastError())
	}
}

// TestRoom refuses lists that together need too much memory. The successor of the lists has room again.
func TestRoom(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it writes two large lists")
	}
	folder := t.TempDir()
	var files []string
	for _, name := range []string{"a", "b"} {
		var text strings.Builder
		for i := range 40_000 {
			text.WriteString(strings.Repeat(strings.Repeat(string(rune('a'+i%26)), 60)+".", 4))
			text.WriteString(strings.Repeat("x", 1+i%2) + string(rune('a'+i/26%26)) + string(rune('a'+i/676%26)) + string(rune('a'+i/17576)) + "\n")
		}
		files = append(files, filepath.Join(folder, name))
		write(t, files[len(files)-1], strings.ReplaceAll(text.String(), "\n", name+"\n"))
	}
	l := newLists(t, blocklist.Config{Files: append(files, filepath.Join(folder, "b"), files[0], files[0], files[0], files[0], files[0])})
	st := l.Stats(time.Now())
	last := st.Files[len(st.Files)-1]
	if st.Bytes > 64<<20 || !strings.Contains(last.LastError, "the lists need more than 64 MiB") {
		t.Errorf("%d bytes, %+v", st.Bytes, last)
	}
	if got := newLists(t, blocklist.Config{Files: files[:1], Predecessor: l}); got.Stats(time.Now()).Files[0].LastError != "" {
		t.Errorf("%+v", got.Stats(time.Now()))
	}
}
