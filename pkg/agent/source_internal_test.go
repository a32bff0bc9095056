// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	origin "github.com/nodecache/node-cache/pkg/source"
)

// TestSourceProblems puts what can be wrong with the source into the order of a page.
func TestSourceProblems(t *testing.T) {
	t.Parallel()
	unread := &SourceProblem{What: "reading ConfigMap a/b: unreachable: no route", Hint: "see"}
	inUse := &LastGoodStatus{Folder: "/kept", InUse: true}
	tests := []struct {
		name string
		s    ConfigStatus
		want []string
	}{
		{"nothing", ConfigStatus{LastOK: true, SourceStatus: SourceStatus{Source: origin.KindFile, File: "/f", LastGood: &LastGoodStatus{}}}, nil},
		{"a bad file", ConfigStatus{LastError: "key: bad\nother: bad", SourceStatus: SourceStatus{File: "/f"}}, []string{"the last file was refused: key: bad"}},
		{"a bad ConfigMap", ConfigStatus{LastError: "key: bad", SourceStatus: SourceStatus{Object: "a/b"}}, []string{"the last configuration was refused: key: bad"}},
		{"the API away", ConfigStatus{LastOK: true, SourceStatus: SourceStatus{Object: "a/b", Unread: unread}}, []string{unread.What}},
		{
			"the API away, and a bad ConfigMap before",
			ConfigStatus{LastError: "key: bad", SourceStatus: SourceStatus{Object: "a/b", Unread: unread}},
			[]string{unread.What, "the last configuration was refused: key: bad"},
		},
		{
			"the API away at the start",
			ConfigStatus{LastError: unread.What, SourceStatus: SourceStatus{Object: "a/b", Unread: unread, LastGood: inUse}},
			[]string{unread.What, "the last good configuration of a/b is in use, from /kept"},
		},
		{
			"a bad file at the start",
			ConfigStatus{LastError: "key: bad", SourceStatus: SourceStatus{File: "/f", LastGood: inUse}},
			[]string{"the last file was refused: key: bad", "the last good configuration of /f is in use, from /kept"},
		},
		{
			"a full disk",
			ConfigStatus{LastOK: true, SourceStatus: SourceStatus{File: "/f", LastGood: &LastGoodStatus{LastError: "no space"}}},
			[]string{"the last good configuration is not saved: no space"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, p := range sourceProblems(&tt.s) {
				got = append(got, p.What)
				if p.Where != "config" || p.Hint == "" {
					t.Errorf("%+v: want a hint, and config", p)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFallBack has a configuration that can be read and not be put to work.
func TestFallBack(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	file := filepath.Join(folder, "node-cache.yaml")
	const listen = "listen: {port: 1}\nadmin: {address: \"\"}\n"
	for path, text := range map[string]string{
		file:                                    listen + "forward: [{zone: \".\", to: [/nonexistent]}]\n",
		filepath.Join(folder, "last-good.yaml"): listen + "forward: [{zone: \".\", to: [192.0.2.1]}]\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	a, err := New(Options{File: file, Source: Source{LastGood: folder}, Log: &log})
	if err != nil {
		t.Fatal(err)
	}
	if got := a.Config().Forward[0].To[0].String(); got != "192.0.2.1" {
		t.Errorf("upstream %s, want that of the last good one", got)
	}
	s := a.configStatus()
	if s.LastOK || s.Refused != 1 || s.Generation != 1 || !s.LastGood.InUse || !strings.Contains(s.LastError, "/nonexistent") {
		t.Errorf("status %+v, %+v", s, s.LastGood)
	}
	if !strings.Contains(log.String(), "running on the last good configuration") {
		t.Errorf("the log does not say so:\n%s", log.String())
	}
	if _, err := New(Options{File: file, Source: Source{LastGood: t.TempDir()}, Log: &log}); err == nil || !strings.Contains(err.Error(), "/nonexistent") {
		t.Errorf("without one: %v, want why", err)
	}
}
