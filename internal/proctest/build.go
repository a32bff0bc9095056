// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// Build compiles node-cache to path, as version "test". With E2E_RACE in the
// environment the program has the race detector.
func Build(path string) error {
	args := []string{"build", "-buildvcs=false", "-trimpath", "-ldflags", "-X main.version=test", "-o", path}
	if os.Getenv("E2E_RACE") != "" {
		args = append(args, "-race")
	}
	out, err := exec.CommandContext(context.Background(), "go", append(args, "github.com/nodecache/node-cache/cmd/node-cache")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("building node-cache: %w\n%s", err, out)
	}
	return nil
}
