/* While one thread executes programs, another rewrites their argument between two texts. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static char text[] = "harmless";
static volatile int done;

static void *rewrite(void *none)
{
	while (!done) {
		memcpy(text, "shutdown", 8);
		memcpy(text, "harmless", 8);
	}
	return none;
}

int main(void)
{
	char *argv[] = {"echo", text, NULL};
	pthread_t thread;

	pthread_create(&thread, NULL, rewrite, NULL);
	for (int i = 0; i < 100; i++) {
		if (vfork() == 0) {
			execv("/bin/echo", argv);
			_exit(1);
		}
		wait(NULL);
	}
	done = 1;
	return 0;
}
