// SPDX-License-Identifier: Apache-2.0

package config_test

import (
	"testing"

	"github.com/nodecache/node-cache/pkg/config"
)

func TestExit(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		mode, set, want string
	}{
		{config.ModeLinkLocal, config.ExitAuto, config.ExitFallback},
		{config.ModeLinkLocal, config.ExitRemove, config.ExitRemove},
		{config.ModeLinkLocal, config.ExitFallback, config.ExitFallback},
		{config.ModeTransparent, config.ExitAuto, config.ExitRemove},
		{config.ModeTransparent, config.ExitRemove, config.ExitRemove},
	} {
		if got := (config.Intercept{Mode: tt.mode, OnExit: tt.set}).Exit(); got != tt.want {
			t.Errorf("mode %s, onExit %s: %s at the end, want %s", tt.mode, tt.set, got, tt.want)
		}
	}
}
