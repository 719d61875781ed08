package helper

import (
	"os"
	"testing"

	"github.com/agentguard/agentguard/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
