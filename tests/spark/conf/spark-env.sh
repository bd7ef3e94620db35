# Spark's scripts read this file before they start Java: see sitecustomize.py.
PYTHONPATH=${SPARK_CONF_DIR}${PYTHONPATH:+:${PYTHONPATH}}
# This begins the class path, and no archive of classes fits a folder with files.
SPARK_CONF_DIR=${SPARK_HOME}/conf
