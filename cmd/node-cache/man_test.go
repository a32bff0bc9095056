// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/nodecache/node-cache/internal/clitest"
)

// manFolder gets the manual pages: hack/image runs TestManPages for a release.
var manFolder = flag.String("man", "", "the folder for the manual pages")

// TestManPages writes a manual page for each command.
func TestManPages(t *testing.T) {
	t.Parallel()
	folder := cmp.Or(*manFolder, t.TempDir())
	root := rootCommand()
	root.DisableAutoGenTag = true
	must(t, doc.GenManTree(root, &doc.GenManHeader{Source: "node-cache", Manual: "node-cache"}, folder))
	pages := 0
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		page, err := os.ReadFile(filepath.Join(folder, strings.ReplaceAll(cmd.CommandPath(), " ", "-")+".1"))
		if must(t, err); !strings.Contains(string(page), cmd.Short) {
			t.Errorf("%s: the page lacks %q", cmd.CommandPath(), cmd.Short)
		}
		pages++
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				check(c)
			}
		}
	}
	check(root)
	if pages < 12 {
		t.Errorf("%d pages, want one for each command", pages)
	}
}

// TestHelp checks the help of each command.
func TestHelp(t *testing.T) {
	t.Parallel()
	if n := clitest.Help(t, rootCommand()); n < 20 {
		t.Errorf("%d commands, want all", n)
	}
}

// TestPages checks the commands of the pages. Those for a terminal of a pod or a node end with the program's path and arguments.
func TestPages(t *testing.T) {
	t.Parallel()
	if n := clitest.Pages(t, "../..", `(?:^(?:node# |\$ )|/)node-cache ([a-z][^|>\n]*)`, rootCommand); n < 40 {
		t.Errorf("%d commands, want forty", n)
	}
}

// TestCompletion asks as a shell does.
func TestCompletion(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ args, want string }{{"cache top --by ", "hits\nsize\n"}, {"status -o ", "text\njson\n"}, {"qu", "query\t"}} {
		if r := command(append([]string{"__complete"}, strings.Split(tt.args, " ")...)...); r.Code != 0 || !strings.HasPrefix(r.Stdout, tt.want) {
			t.Errorf("%q: %+v, want %q", tt.args, r, tt.want)
		}
	}
}
