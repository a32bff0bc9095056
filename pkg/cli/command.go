// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/miekg/dns"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodecache/node-cache/pkg/plain"
)

// Root completes the root command of a program. Without a subcommand it shows the help. Invalid flags are usage errors.
func Root(root *cobra.Command, version string, subcommands ...*cobra.Command) *cobra.Command {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.Version = VersionText(version)
	root.Args = UnknownCommand
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	root.SetVersionTemplate("{{.Version}}\n")
	root.PersistentPreRunE = checkFlags
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &UsageError{Err: err} })
	root.AddCommand(subcommands...)
	return root
}

// VersionText describes a program of this version.
func VersionText(version string) string {
	return fmt.Sprintf("node-cache %s %s %s/%s", version, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Commit returns the hash of the commit that this program is built from. It is empty if the go command did not record it, as for a
// build of a source archive.
func Commit() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	i := slices.IndexFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" })
	if i < 0 {
		return ""
	}
	return info.Settings[i].Value
}

// AddOutput adds the flag --output.
func AddOutput(cmd *cobra.Command, flags *pflag.FlagSet, output *string) {
	flags.StringVarP(output, "output", "o", "text", "`FORMAT` of the output: text or json")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp))
}

// checkFlags checks the flags --output and --timeout of a command that has them.
func checkFlags(cmd *cobra.Command, _ []string) error {
	if f := cmd.Flags().Lookup("output"); f != nil && f.Value.String() != "text" && f.Value.String() != "json" {
		return &UsageError{Err: fmt.Errorf("--output %q: not text or json", f.Value)}
	}
	if timeout, err := cmd.Flags().GetDuration("timeout"); err == nil && timeout <= 0 {
		return &UsageError{Err: fmt.Errorf("--timeout %s: not more than 0", timeout)}
	}
	return nil
}

// PrintJSON prints a value for programs.
func PrintJSON(out io.Writer, v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return err
	}
	_, err := out.Write(plain.JSON(b.Bytes()))
	return err
}

// PrintPage prints a page of an agent, which has the format of the flag --output.
func PrintPage(out io.Writer, page []byte, output string) error {
	if output == "json" {
		_, err := out.Write(plain.JSON(page))
		return err
	}
	return PrintPlain(out, page)
}

// PrintPlain prints the lines of a text from the network. It keeps tabs, which separate the fields of a record.
func PrintPlain(out io.Writer, text []byte) error {
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(bytes.Clone(text), '\n')
	}
	fields := strings.Split(string(text), "\t")
	for i := range fields {
		fields[i] = plain.Lines(fields[i])
	}
	_, err := io.WriteString(out, strings.Join(fields, "\t"))
	return err
}

// DomainName returns a name of the command line with its final dot.
func DomainName(text string) (string, error) {
	name := dns.Fqdn(text)
	if _, ok := dns.IsDomainName(name); !ok || text == "" {
		return "", fmt.Errorf("%q: not a domain name", text)
	}
	return name, nil
}
