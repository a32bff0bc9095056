// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodecache/node-cache/pkg/admin/top"
)

// TopFlags select what a table of pods shows.
type TopFlags struct {
	By, Sort string
	Interval time.Duration
	Number   int
}

// Add adds the flags to a command. shorthand is the short form of --number; empty: none.
func (f *TopFlags) Add(cmd *cobra.Command, shorthand string) {
	cmd.Flags().StringVar(&f.By, "by", "pod", "`GROUP` that a row is for: "+strings.Join(top.Groups(), ", "))
	cmd.Flags().StringVar(&f.Sort, "sort", "queries", "`COLUMN` to sort by: "+strings.Join(top.Columns(), ", "))
	cmd.Flags().IntVarP(&f.Number, "number", shorthand, 20, "`NUMBER` of rows, 1 to 1000")
	cmd.Flags().DurationVar(&f.Interval, "interval", 2*time.Second, "`TIME` over which rates are measured, 100ms or more")
	for name, values := range map[string][]string{"by": top.Groups(), "sort": top.Columns()} {
		_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// Check returns a usage error if a value is invalid.
func (f *TopFlags) Check() error {
	err := error(nil)
	switch {
	case !slices.Contains(top.Groups(), f.By):
		err = fmt.Errorf("--by %q: not one of %s", f.By, strings.Join(top.Groups(), ", "))
	case !slices.Contains(top.Columns(), f.Sort):
		err = fmt.Errorf("--sort %q: not one of %s", f.Sort, strings.Join(top.Columns(), ", "))
	case f.Number < 1 || f.Number > 1000:
		err = fmt.Errorf("--number %d: not from 1 to 1000", f.Number)
	case f.Interval < 100*time.Millisecond:
		err = fmt.Errorf("--interval %s: less than 100ms", f.Interval)
	}
	if err != nil {
		return &UsageError{Err: err}
	}
	return nil
}
