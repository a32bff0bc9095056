// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Pages checks the commands in the console blocks of the pages of the repository at root: pattern finds them, and its group is the
// arguments. Each names a command, flags and a number of arguments that the program takes. It returns how many there are.
func Pages(t *testing.T, root, pattern string, program func() *cobra.Command) int {
	t.Helper()
	commands := 0
	for _, glob := range []string{"*.md", "*/*.md", "*/*/*.md", "*/*/*/*.md"} {
		pages, err := filepath.Glob(filepath.Join(root, glob))
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range pages {
			text, err := os.ReadFile(page)
			if err != nil {
				t.Fatal(err)
			}
			for _, block := range regexp.MustCompile("(?ms)^```console\n(.*?)^```$").FindAllStringSubmatch(string(text), -1) {
				for _, m := range regexp.MustCompile(`(?m)`+pattern).FindAllStringSubmatch(block[1], -1) {
					commands++
					line, _, _ := strings.Cut(m[1], " #")
					if err := accepts(program(), strings.Fields(line)); err != nil {
						t.Errorf("%s: %s: %v", page, m[0], err)
					}
				}
			}
		}
	}
	return commands
}

// accepts parses a command line as the program does, without running it.
func accepts(root *cobra.Command, args []string) error {
	cmd, rest, err := root.Find(args)
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}
