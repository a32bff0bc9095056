// SPDX-License-Identifier: Apache-2.0

package clitest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// maxWidth is the longest line of a help text, in bytes.
const maxWidth = 90

// Help checks the help of a program's commands: each says what it does and its exit codes, and what each flag takes. It returns the
// number of commands.
func Help(t *testing.T, root *cobra.Command) int {
	t.Helper()
	commands := 0
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		commands++
		path := cmd.CommandPath()
		if cmd.Short == "" || strings.HasSuffix(cmd.Short, ".") {
			t.Errorf("%s: %q: not a line for a list of commands", path, cmd.Short)
		}
		if !cmd.HasSubCommands() || cmd == root {
			if !strings.Contains(cmd.Long, "\n\nExit code 0: ") {
				t.Errorf("%s: the help has no exit codes", path)
			}
		}
		for line := range strings.Lines(cmd.Long) {
			if len(strings.TrimSpace(line)) > maxWidth {
				t.Errorf("%s: a line of the help has more than %d bytes: %s", path, maxWidth, line)
			}
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { checkFlag(t, path, f) })
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() && c.Name() != "help" && c.Name() != "completion" {
				check(c)
			}
		}
	}
	check(root)
	return commands
}

// checkFlag checks what the help says about a flag. A flag with a value names it in upper case, others name none.
func checkFlag(t *testing.T, path string, f *pflag.Flag) {
	t.Helper()
	value, usage := pflag.UnquoteUsage(f)
	isBool := f.Value.Type() == "bool"
	if isBool != (value == "") || !isBool && !regexp.MustCompile(`^[A-Z][A-Z:/\[\]]*$`).MatchString(value) {
		t.Errorf("%s --%s: its value is called %q, want a word in upper case, or none for a switch", path, f.Name, value)
	}
	if strings.TrimSpace(usage) == "" || strings.HasSuffix(usage, ".") {
		t.Errorf("%s --%s: %q: not what the flag does", path, f.Name, usage)
	}
}
